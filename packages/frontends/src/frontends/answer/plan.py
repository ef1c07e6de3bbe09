"""`Plan`, the class that users get: a plan's data with methods on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frontends.answer import plan_json
from frontends.errors import OutputError, PlanError
from frontends.plan.plan_fields import PlanFields
from frontends.program.check import Verification, verify_plan
from frontends.report import diff, explain
from frontends.report.html import plan_html
from frontends.report.text import plan_text


@dataclass(frozen=True, slots=True, repr=False)
class Plan(PlanFields):
    """How one training step runs on a cluster."""

    def __str__(self) -> str:
        return plan_text(self)

    def explain(self, name: str) -> explain.Explanation:
        """Why an operator or a value has its layouts and its stage; see `explain.explain`."""
        return explain.explain(self, name)

    def diff(self, other: Plan) -> diff.Difference:
        """The differences of another plan from this one; see `diff.diff`."""
        return diff.diff(self, other)

    def verify(self) -> Verification:
        """Check that the parts fit together and keep the limits; see `check.verify_plan`."""
        return verify_plan(self)

    def html(self) -> str:
        """The plan as one self-contained HTML page; see `html.plan_html`."""
        return plan_html(self)

    def to_json(self) -> str:
        """The plan as JSON text, from which `from_json` reads an equal plan."""
        return plan_json.write(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from JSON text, in this format or an older one.

        Raises:
            PlanError: The text is no plan, or a plan in a newer format.
        """
        return plan_json.read(cls, text)

    def save(self, path: str | Path) -> None:
        """Write the plan's JSON; `OutputError` if the file cannot be written."""
        try:
            Path(path).write_text(self.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"a plan is written to a file; {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a file; `PlanError` if the file has none."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"a plan is read from a JSON file; {path}: {error}") from error
        return cls.from_json(text)
