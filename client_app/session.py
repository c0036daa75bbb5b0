"""A session: a hospital, opened and judged for one run.

It lives as long as its process, so that later messages need not open the hospital again. Each
message compares the inputs of the session: the run's settings, the hospital's node-config and
policy, its name, the federation's classes and, at a real hospital, the run.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from flwr.app import Context

from client_app.authority.node_config import SIMULATED, is_simulated, own_config, policy_file
from client_app.authority.permission import admit_run
from client_app.hospital import Hospital, open_hospital
from learning.cpu import prepare_cpu
from strategies.engine.strategy import Strategy
from strategies.protocol.files import read_bytes
from strategies.protocol.settings import Settings
from strategies.registry import strategy_of


@dataclass(frozen=True)
class Session:
    """A hospital and the method of one run."""

    hospital: Hospital  # the hospital, with all its images and its own settings
    strategy: Strategy  # the run's method, with the run's settings
    images: str  # the fingerprint of the hospital's images, and which part of them it has


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a session; its text distinguishes 1, 1.0 and true."""

    text: str
    context: Context = field(compare=False)
    name: str = field(compare=False)
    classes: tuple[str, ...] = field(compare=False)


def session_for(context: Context, name: str, classes: tuple[str, ...], run: str) -> Session:
    """The session of a message: an existing one, or a new one.

    Arguments and errors are those of `open_hospital`.
    """
    own = own_config(context)
    simulated = is_simulated(own)
    policy, rules = policy_file(own), None
    if policy:
        with suppress(OSError):  # `open_hospital` reports it
            rules = read_bytes(policy)
    settings = sorted(context.run_config.items())
    # A real hospital is opened anew for each run: its images may have changed since the last one.
    text = repr((settings, sorted(own.items()), simulated, rules, name, classes, simulated or run))
    session = _opener(repr(settings) if simulated else text)(_Inputs(text, context, name, classes))
    # Another run in this process may have set another number of threads (see `open_hospital`).
    prepare_cpu(session.hospital.settings.cpu_threads)
    return session


def _open(inputs: _Inputs) -> Session:
    hospital = open_hospital(inputs.context, inputs.name, inputs.classes)
    admit_run(hospital)
    own = own_config(inputs.context)
    part = [own.get(key) for key in SIMULATED]
    strategy = strategy_of(Settings.parse(inputs.context.run_config))
    # Which images are for testing depends on all classes that take part, not on the run's alone.
    part += hospital.policy.images.classes if hospital.policy else []
    return Session(hospital, strategy, f"{hospital.data.fingerprint}, part {part}")


@lru_cache(maxsize=1)  # other sessions would keep their images while one is opened
def _opener(key: str) -> Callable[[_Inputs], Session]:
    """The function that opens the simulated hospitals of a run, each once in a process.

    A real hospital has a function for each of its sessions. So it holds the images of one.

    On a GPU each hospital has a copy of its images, so the number of open ones has a limit.
    """
    return lru_cache(maxsize=64 if torch.cuda.is_available() else None)(_open)
