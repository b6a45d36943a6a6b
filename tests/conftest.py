"""Skips are told with their reason; in CI a skip of what this job must be able to do is a failure."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from genie.errors import NotReadyError
from genie.replay.transports.verbs_library import find_pyverbs
from genie.testbed.namespaces import capability
from genie.testbed.rdma_kernel import find_kernel, hindrance

settings.register_profile("genie", deadline=None)  # a busy machine makes no example wrong
settings.load_profile("genie")

SHARED = Path(__file__).resolve().parents[2] / "shared"
ALLOWED_IN_CI = (
    "needs ../shared",
    "needs an ordinary user",
    "needs chromium",
    "needs ASTRA-sim",
    "no rdma-lab on such a machine",
)


def pytest_collection_modifyitems(items):
    kind, why = capability()
    for item in items:
        if item.get_closest_marker("netns") and kind != "root":
            item.add_marker(pytest.mark.skip(reason=f"needs network namespaces as root: {why}"))
        if item.get_closest_marker("shared") and not SHARED.is_dir():
            item.add_marker(pytest.mark.skip(reason="needs ../shared, the trace collection, beside the checkout"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and os.geteuid() == 0:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"CI must not skip this: {reason}"


@pytest.fixture
def shared():
    return SHARED


@pytest.fixture(scope="session")
def rdma_lab():
    """Skip with the reason where the rdma-lab cannot be; in CI only what no installation can mend is allowed."""
    why = hindrance() or find_pyverbs()
    if why and "not installed" not in why:
        pytest.skip(f"no rdma-lab on such a machine: {why}")
    try:
        find_kernel()
    except NotReadyError as error:
        pytest.skip(f"needs the rdma-lab: {error}")
    if why:
        pytest.skip(f"needs the rdma-lab: {why}")
