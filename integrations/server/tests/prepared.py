"""Imported by the process from which servers of tests are forked: what each of them needs.

The server and the bots are made here for the first time, for that imports more.
"""

from __future__ import annotations

import gc

import numpy as np
from langchain_cfc_server import Settings, create_app, server
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from integrations.server.tests import bots
from langchain_cfc.cli import commands

used = (bots, commands, np.ma, np.random, server)
create_app({"bot": ChatOpenAI(api_key=SecretStr("none"))}, Settings(tokens=("a-token-for-no-client",)))
gc.freeze()  # what all share is not copied
