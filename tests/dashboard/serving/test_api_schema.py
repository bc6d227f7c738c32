"""Every route against its own description, with what schemathesis draws, on a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import api_server
import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode

from dashboard.serving.server import Server

RULES_BETWEEN_VALUES = ("lies before first", "watchpoint ", "must be one line", "There is no track ")
"""What no schema can say: a 422 with one of these is right for values which the schema takes."""
WITHOUT_PYARROW = "Arrow needs the package pyarrow"
DELETION = ("delete", "/api/v1/runs/{run}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        pytest.MonkeyPatch.context() as patched,
        api_server.serving(tmp_path_factory.mktemp("schema")) as started,
    ):
        patched.setattr("dashboard.throttle.FAILURES", 10**9)  # its wrong tokens are to be refused as such
        api_server.fill(started, is_full=True)
        api_server.add_document(started, b'{"rss_bytes": 1}')
        yield started


@pytest.fixture(scope="module")
def operations(server: Server) -> list[Any]:
    schema = schemathesis.openapi.from_url(server.page + "openapi.json", headers=dict(api_server.BEARER))
    return [result.ok() for result in schema.get_all_operations()]


def drawn(operation: Any, mode: GenerationMode, examples: int) -> Counter[int]:
    """Ask what schemathesis draws, have it check the answers; return how often which status came."""
    statuses: Counter[int] = Counter()
    session = requests.Session()
    session.trust_env = False

    def ask(case: Any) -> None:
        is_kept = mode is GenerationMode.POSITIVE and (operation.method, operation.path) != DELETION
        if is_kept and "run" in case.path_parameters:
            case.path_parameters["run"] = api_server.RUN
        # The page's cookie is drawn too, and with it a change needs the type of a body without having one.
        typed = {"content-type": "application/json"} if case.media_type is None else {}
        # An exported page takes 1.4 s of a processor, which others may want.
        answer = case.call(headers={**api_server.BEARER, **typed}, session=session, timeout=90)
        statuses[answer.status_code] += 1
        left_out = []
        if answer.status_code == 422 and any(text in answer.text for text in RULES_BETWEEN_VALUES):
            left_out = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]
        if answer.status_code == 501 and WITHOUT_PYARROW in answer.text:
            left_out = [schemathesis.checks.CHECKS.get_one("not_a_server_error")]
        case.validate_response(answer, headers=dict(api_server.BEARER), excluded_checks=left_out)

    settings = hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    try:
        settings(hypothesis.given(case=operation.as_strategy(mode))(ask))()
    finally:
        session.close()
    return statuses


@pytest.mark.capability(55)
@pytest.mark.slow
@pytest.mark.parametrize(
    "examples", [2, pytest.param(60, marks=[pytest.mark.faults, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value
)
def test_routes_answer_as_they_are_described(
    operations: list[Any], mode: GenerationMode, examples: int
) -> None:
    problems, statuses = {}, Counter[int]()
    for operation in operations:
        try:
            statuses += drawn(operation, mode, examples)
        except (schemathesis.errors.SchemathesisError, AssertionError, BaseExceptionGroup) as error:
            problems[operation.label] = str(error)
    assert not problems, "\n".join(f"{label}: {text}" for label, text in problems.items())
    assert len(operations) > 40
    assert statuses[200 if mode is GenerationMode.POSITIVE else 422] > 15 * examples, statuses
