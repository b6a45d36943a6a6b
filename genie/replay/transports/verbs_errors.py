"""Work completions that failed, in sentences: what happened, and what usually causes it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Explanation(NamedTuple):
    """Of one status: the name that verbs give it, what it means, what usually causes it."""

    name: str
    what: str
    cause: str


SUCCESS: Final = 0
FLUSHED: Final = 5
RETRY_EXCEEDED: Final = 12
_SIZES: Final = "both ends disagree about sizes or keys; if both run one version of Genie, please report it"
_LOCAL: Final = "a bug or a device's limit: please report it, with the device's name"

EXPLANATIONS: Final = {
    1: Explanation("LOC_LEN_ERR", "a message did not fit its buffer here", _SIZES),
    2: Explanation("LOC_QP_OP_ERR", "the queue pair was used in a way that it does not allow", _LOCAL),
    3: Explanation("LOC_EEC_OP_ERR", "the end-to-end context was misused", _LOCAL),
    4: Explanation("LOC_PROT_ERR", "memory here is not registered for what was asked of it", _LOCAL),
    5: Explanation("WR_FLUSH_ERR", "the queue pair had failed before and gave this request up", "see the first error"),
    6: Explanation("MW_BIND_ERR", "a memory window could not be bound", _LOCAL),
    7: Explanation("BAD_RESP_ERR", "the peer's device answered what was not asked", "the device or its firmware"),
    8: Explanation("LOC_ACCESS_ERR", "the peer wrote where it may not", _SIZES),
    9: Explanation("REM_INV_REQ_ERR", "the peer's device refused the request as invalid", _SIZES),
    10: Explanation("REM_ACCESS_ERR", "the peer's memory key or address was refused", _SIZES),
    11: Explanation(
        "REM_OP_ERR", "the peer's device could not finish the request", "the peer's queue pair failed: see its error"
    ),
    12: Explanation(
        "RETRY_EXC_ERR",
        "the peer's device never acknowledged, however often it was asked",
        "a link or host is down, a firewall or ACL drops UDP 4791, the path MTU is larger than what a switch forwards, "
        "or more is lost than the retries allow",
    ),
    13: Explanation(
        "RNR_RETRY_EXC_ERR", "the peer had no receive posted, however often it was asked", "the peer's process hangs"
    ),
    14: Explanation("LOC_RDD_VIOL_ERR", "a reliable-datagram domain was violated", _LOCAL),
    15: Explanation("REM_INV_RD_REQ_ERR", "the peer refused a reliable-datagram request", _LOCAL),
    16: Explanation("REM_ABORT_ERR", "the peer's device aborted the request", "the peer closed its queue pair"),
    17: Explanation("INV_EECN_ERR", "the end-to-end context number is invalid", _LOCAL),
    18: Explanation("INV_EEC_STATE_ERR", "the end-to-end context is in a wrong state", _LOCAL),
    19: Explanation("FATAL_ERR", "the device failed", "its driver or firmware: look at dmesg"),
    20: Explanation("RESP_TIMEOUT_ERR", "the peer did not respond in time", "the peer's host is overloaded or down"),
    21: Explanation("GENERAL_ERR", "the device reports an error without a name", "look at dmesg on both hosts"),
    22: Explanation("TM_ERR", "tag matching failed", _LOCAL),
    23: Explanation("TM_RNDV_INCOMPLETE", "a tag-matching rendezvous broke off", _LOCAL),
}

_UNKNOWN: Final = "an error that this version of Genie does not know"


def explain(status: int) -> Explanation:
    """What a work completion's status (enum ibv_wc_status) means; unknown ones are named by number."""
    return EXPLANATIONS.get(status, Explanation(f"status {status}", _UNKNOWN, "look at dmesg on both hosts"))


def sentence(status: int, peer: int, place: str, vendor: int = 0) -> tuple[str, str]:
    """(what, fix) of a failed completion on the queue pair to `peer`; `place` is the device, port and GID used."""
    told = explain(status)
    extra = f", vendor code {vendor}" if vendor else ""
    return f"rank {peer} through {place}: {told.what} ({told.name}{extra}).", f"the usual cause: {told.cause}."
