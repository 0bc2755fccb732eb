"""What all tests of the repository share; pages are run as tests, too."""

pytest_plugins = ["tests.session", "tests.pages"]
