"""The calls of a session that are about rules and watchpoints: a part of `Probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...wire import Severity

if TYPE_CHECKING:
    from ...delivery.control.rule_options import Action, WatchpointOptions
    from .rule_book import RuleBook
    from .user_rule import RuleFunction


class RuleCalls:
    """What `Probe` offers for rules of the user's own; on an inert handle arguments are checked, no more."""

    def _rule_book(self) -> RuleBook | None:
        """The session's rules; None where nothing is recorded."""
        raise NotImplementedError

    def add_rule(self, function: RuleFunction, name: str | None = None) -> str:
        """Call a function with every finished step; what it returns becomes an event (kind `custom`).

        It gets a `probe.StepView` and returns None, or a text, True or a `probe.RuleResult` where something
        is to be told. An event lasts as long as the rule goes on returning something. Called on the training
        thread, and dropped, with an event, after an exception or when it is slow.

        Args:
            function: of one step.
            name: what events call it; the function's own name by default.

        Returns:
            The name.

        Raises:
            ValueError: it cannot be called, or the name is taken.
        """
        book = self._rule_book()
        if book is not None:
            return book.add_rule(function, name)
        return name or str(getattr(function, "__name__", type(function).__name__))

    def watchpoint(
        self,
        condition: str,
        action: Action = "event",
        *,
        name: str | None = None,
        severity: Severity | None = None,
        once: bool = False,
        cooldown_steps: int = 0,
    ) -> str:
        """Watch a condition at every step, such as ``when grad_norm("layers.3.*") > 8 * median``.

        docs/rules.md says what a condition may consist of. Works from any thread.

        Args:
            condition: an expression.
            action: "event", "snapshot" (keeps all numbers of the step), "bundle" (keeps what reproduces it),
                "pause" (the training thread waits for `resume`) or "profile" (of the next 5 steps).
            name: what events call it; the condition by default.
            severity: of its events; "warning", of a snapshot and a profile "info", by default.
            once: whether it is over after its first event.
            cooldown_steps: so many steps after the beginning of an event it begins no other.

        Returns:
            The name.

        Raises:
            ValueError: the condition cannot be read (says where, and what is allowed), it names what the
                model has not, or an option is out of range.
        """
        from ...delivery.control.rule_options import WatchpointOptions

        options = WatchpointOptions(
            condition=condition,
            action=action,
            name=name or "",
            severity=severity,
            once=once,
            cooldown_steps=cooldown_steps,
        )
        book = self._rule_book()
        return options.name if book is None else book.add_watchpoint(options)

    def save_bundle(self, name: str = "bundle asked for") -> str:
        """Keep what reproduces the next step, as a bundle: see docs/bundles.md. Works from any thread.

        An event (kind `custom`, information) says where it is. It counts among the run's `bundles`.

        Args:
            name: what the event calls it.

        Returns:
            The name.

        Raises:
            ValueError: a bundle of that name is waited for already.
        """
        return self.watchpoint("step >= 0", "bundle", name=name, severity="info", once=True)

    @property
    def watchpoints(self) -> tuple[WatchpointOptions, ...]:
        """Watchpoints that are judged, in the order in which they were added."""
        book = self._rule_book()
        return () if book is None else book.watchpoints

    def remove_rule(self, name: str) -> bool:
        """Take out a rule or a watchpoint; whether there was one. Works from any thread."""
        book = self._rule_book()
        return book is not None and book.remove(name)

    @property
    def is_paused(self) -> bool:
        """Whether a watchpoint has the training wait."""
        book = self._rule_book()
        return book is not None and book.is_paused

    def resume(self) -> bool:
        """Let a training go on that a watchpoint has paused, from another thread; whether it was paused."""
        book = self._rule_book()
        return book is not None and book.resume("run.resume()")
