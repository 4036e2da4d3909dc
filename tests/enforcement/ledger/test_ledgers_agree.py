"""The same history, told to every ledger: the same answers, the same counters, the same events."""

import os
import random
import uuid

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Admission, Kind, Outcome

COUNT = 100 * max(1, int(os.environ.get("RAVI_LONG") or 1))
"""How many histories: RAVI_LONG=100 is ten thousand."""

SCOPES = ("tenant", "session", "run", "block", "agent")
KINDS = (Kind.TOKENS, Kind.TOKENS, Kind.COST, Kind.REQUESTS, Kind.TOOL_CALLS, Kind.MESSAGES)
STEPS = 25


class History:
    """Tell one ledger a history that a seed decides, and write down all that it says."""

    def __init__(self, desk, seed):
        self.desk = desk
        self.dice = random.Random(seed)
        self.accounts = self._accounts()
        self.live, self.over, self.said = [], [], []

    def _accounts(self):
        dice = self.dice
        scopes = sorted((dice.choice(SCOPES) for _ in range(dice.randint(1, 5))), key=SCOPES.index)
        return [self._account(scope) for scope in scopes]

    def _account(self, scope):
        dice, kind = self.dice, self.dice.choice(KINDS)
        limit = {
            "on_exceed": dice.choice((Outcome.RAISE, Outcome.RAISE, Outcome.STOP, Outcome.FINAL, Outcome.OBSERVE, Outcome.DENY_TOOL)),
            "warn_at": dice.choice((None, 0.5, 0.33, 1.0)),
        }
        if kind in (Kind.TOKENS, Kind.COST) and dice.random() < 0.15:
            limit["admission"] = Admission.AFTER
        return self.desk.account(kind, dice.choice((0, 1, 7, 40, 100, 2**48)), scope, **limit)

    def tell(self):
        acts = (self.reserve, self.reserve, self.reserve, self.settle, self.settle, self.release, self.extend, self.retune, self.again)
        for _ in range(STEPS):
            self.dice.choice(acts)()
            self.said.append([self.shown(account) for account in self.accounts])
        return self.said

    @staticmethod
    def shown(account):
        flags = account.near, account.exceeded, account.draining
        return account.used, account.held, account.value, account.denied, account.kept_back, flags, account.events

    def crossed(self, crossings):
        return [(self.accounts.index(one.account), one.event, one.phase, one.decision, one.used, one.held) for one in crossings]

    def refused(self, denied):
        return self.accounts.index(denied.account), denied.reason, denied.used, denied.held, denied.minimum, self.crossed(denied.crossings)

    def reserve(self):
        dice = self.dice
        amount, least = dice.choice((0, 1, 5, 30, 90, 2**48)), dice.choice((0, 1, 1, 5))
        lines = []
        for account in self.accounts:
            if dice.random() < 0.85:
                whole = account.kind in (Kind.REQUESTS, Kind.TOOL_CALLS, Kind.MESSAGES)
                want = dice.choice((1, 1, 3)) if whole else amount
                lines.append(
                    Line(account, want, want if whole else min(least, want), free=dice.random() < 0.05, carved=dice.random() < 0.05)
                )
        more = {name: dice.random() < 0.15 for name in ("spent", "wraps_up", "sure")}
        op = new_op_id() if dice.random() < 0.8 else uuid.uuid4().hex
        answer = run_sync(self.desk.ledger.reserve(Reservation(op, lines, owner=dice.choice("ab"), **more)))
        if isinstance(answer, Denied):
            self.said.append(self.refused(answer))
        else:
            self.live.append(op)
            observed = None if answer.observed is None else self.accounts.index(answer.observed)
            self.said.append((answer.granted, [hold for _, hold in answer.holds], observed, self.crossed(answer.crossings)))

    def ended(self):
        return self.live.pop(self.dice.randrange(len(self.live)))

    def settle(self):
        dice = self.dice
        told = {kind: dice.choice((-3, 0, 1, 20, 95)) for kind in (Kind.TOKENS, Kind.COST, Kind.MESSAGES) if dice.random() < 0.6}
        guessed = dice.random() < 0.2
        if self.live:
            op = self.ended()
            settled = run_sync(self.desk.ledger.settle(op, told or None, guessed=guessed))
            self.said.append((self.crossed(settled.crossings), [(self.accounts.index(one), much) for one, much in settled.overage]))
            self.over.append(op)

    def release(self):
        if self.live:
            op = self.ended()
            self.desk.release(op)
            self.over.append(op)

    def extend(self):
        dice = self.dice
        more = {kind: dice.choice((-1, 0, 1, 30)) for kind in (Kind.TOKENS, Kind.COST) if dice.random() < 0.7}
        if self.live:
            extended = run_sync(self.desk.ledger.extend(dice.choice(self.live), more))
            short = None if extended.short is None else self.refused(extended.short)
            self.said.append((dict(extended.more), short, self.crossed(extended.crossings)))

    def retune(self):
        account, value = self.dice.choice(self.accounts), self.dice.choice((0, 5, 50, 150))
        self.desk.retune(account, value)

    def again(self):
        dice = self.dice
        if self.over:
            op = dice.choice(self.over)
            self.desk.settle(op, {Kind.TOKENS: 50}) if dice.random() < 0.5 else self.desk.release(op)


def test_the_same_history_has_the_same_answers_in_every_ledger(every_desk):
    for seed in range(COUNT):
        told = {}
        for kind, desk in every_desk.items():
            told[kind] = History(desk, seed).tell()
        for kind, said in told.items():
            differs = next((at for at, (one, other) in enumerate(zip(said, told["memory"], strict=True)) if one != other), None)
            assert differs is None, (seed, kind, differs, said[differs], told["memory"][differs])
