"""The terms of a feature map, one file each: statistics or metadata of a prompt in, columns out."""

from langchain_cfc.features.bases.bins import Bins
from langchain_cfc.features.bases.constant import Constant
from langchain_cfc.features.bases.group import Group
from langchain_cfc.features.bases.hard import Hard
from langchain_cfc.features.bases.hat import Hat
from langchain_cfc.features.bases.polynomial import Polynomial
from langchain_cfc.features.bases.term import Term

__all__ = ["Bins", "Constant", "Group", "Hard", "Hat", "Polynomial", "Term"]
