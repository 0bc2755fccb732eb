// What the theme makes in the browser is made accessible: boxes with wide tables scroll with the keyboard as well, and
// buttons that copy code are no landmarks.
addEventListener("load", () => {
  for (const cell of document.querySelectorAll(".md-typeset td")) {
    if (cell.textContent.length > 60) cell.classList.add("is-long"); // phones leave it room
  }
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.role = "presentation";
});
