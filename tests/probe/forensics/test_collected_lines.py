"""The line of a loss that was collected over many calls of a policy, as public actor-critic programs do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
NAN, EPISODES, BAD, STEPS = float("nan"), 4, 3, 6


class Env:
    """Its rewards are 1, but for one that is NaN; it counts its steps."""

    def __init__(self) -> None:
        self.steps, self.episode = 0, 0

    def step(self, action: int) -> tuple[Tensor, float]:
        self.steps += 1
        is_bad = self.episode == BAD and self.steps % STEPS == 3
        return torch.full((4,), 0.1 * (self.steps % STEPS) + 0.01 * action), NAN if is_bad else 1.0


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
        self.saved_log_probs: list[Tensor] = []
        self.saved_actions: list[tuple[Tensor, Tensor]] = []
        self.rewards: list[float] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.body(x))
        return torch.softmax(self.actor(x), -1), self.critic(x)


class Agent:
    def __init__(self, policy: Policy, opt: torch.optim.Optimizer) -> None:
        self.policy, self.opt, self.env = policy, opt, Env()
        self.log_probs, self.rewards = list[Tensor](), list[float]()

    def act(self, state: Tensor) -> int:
        dist = Categorical(self.policy(state)[0])
        action = dist.sample()
        self.log_probs.append(dist.log_prob(action))
        return int(action)

    def update(self) -> None:
        weights = torch.tensor(self.rewards).cumsum(0)  # METHOD
        loss = -(torch.stack(self.log_probs) * weights).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.log_probs.clear()
        self.rewards.clear()


def select_action(policy: Policy, state: Tensor) -> int:
    probs, value = policy(state)
    dist = Categorical(probs)
    action = dist.sample()
    policy.saved_log_probs.append(dist.log_prob(action))
    policy.saved_actions.append((dist.log_prob(action), value))
    return int(action)


def finish_reinforce(policy: Policy, opt: torch.optim.Optimizer) -> None:
    total = 0.0
    policy_loss: Any = []
    returns: Any = deque()
    for r in policy.rewards[::-1]:
        total = r + 0.99 * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    for log_prob, value in zip(policy.saved_log_probs, returns, strict=True):
        policy_loss.append(-log_prob * value)  # REINFORCE
    opt.zero_grad()
    policy_loss = torch.stack(policy_loss).sum()
    policy_loss.backward()
    opt.step()


def finish_actor_critic(policy: Policy, opt: torch.optim.Optimizer) -> None:
    total, policy_losses, value_losses, returns = 0.0, [], [], list[float]()
    for r in policy.rewards[::-1]:
        total = r + 0.99 * total
        returns.insert(0, total)
    for (log_prob, value), wanted in zip(policy.saved_actions, returns, strict=True):
        advantage = wanted - value.item()
        policy_losses.append(-log_prob * advantage)  # -log_prob
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([wanted])))
    opt.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    opt.step()


Train = Callable[[Policy, torch.optim.Optimizer], Env]


def by_functions(finish: Callable[[Policy, torch.optim.Optimizer], None]) -> Train:
    def train(policy: Policy, opt: torch.optim.Optimizer) -> Env:
        env = Env()
        for env.episode in range(EPISODES):
            state = torch.zeros(4)
            for _ in range(STEPS):
                state, reward = env.step(select_action(policy, state))
                policy.rewards.append(reward)
            finish(policy, opt)
            for kept in (policy.saved_log_probs, policy.saved_actions, policy.rewards):
                kept.clear()
        return env

    return train


def in_one_function(policy: Policy, opt: torch.optim.Optimizer) -> Env:
    env = Env()
    for env.episode in range(EPISODES):
        state, log_probs, rewards = torch.zeros(4), [], []
        for _ in range(STEPS):
            dist = Categorical(policy(state)[0])
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            state, reward = env.step(int(action))
            rewards.append(reward)
        weights = torch.tensor(rewards)
        loss = torch.stack([-a * b for a, b in zip(log_probs, weights, strict=True)]).sum()  # INLINE
        opt.zero_grad()
        loss.backward()
        opt.step()
    return env


def fault_in_the_loop(policy: Policy, opt: torch.optim.Optimizer) -> Env:
    env = Env()
    for env.episode in range(EPISODES):
        parts = []
        for number in range(STEPS):
            probs, _ = policy(torch.ones(4))
            parts.append(probs.mean() / (0.0 if (env.episode, number) == (BAD, 3) else 1.0))  # LOOP
        loss = torch.stack(parts).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return env


def many_steps(policy: Policy, opt: torch.optim.Optimizer) -> Env:
    env = Env()
    for env.episode in range(EPISODES):
        parts = [policy(torch.ones(4))[0].mean() for _ in range(60)]
        wanted = [NAN if (env.episode, number) == (BAD, 30) else 1.0 for number in range(60)]
        finish_many(parts, wanted, opt)
    return env


def finish_many(parts: list[Tensor], wanted: list[float], opt: torch.optim.Optimizer) -> None:
    opt.zero_grad()
    made = [-part * one for part, one in zip(parts, wanted, strict=True)]  # MANY
    loss = torch.stack([(part.abs() + 1.0).neg().exp().neg() for part in made]).sum()
    loss.backward()
    opt.step()


def fault_where_it_was_collected(policy: Policy, opt: torch.optim.Optimizer) -> Env:
    agent = Agent(policy, opt)

    def act() -> None:
        agent.env.steps += 1
        is_bad = agent.env.episode == BAD and agent.env.steps % STEPS == 3
        agent.log_probs.append(policy(torch.ones(4))[0].mean() / (0.0 if is_bad else 1.0))
        agent.rewards.append(1.0)

    for agent.env.episode in range(EPISODES):
        for _ in range(STEPS):
            act()
        agent.update()
    return agent.env


def by_an_agent(policy: Policy, opt: torch.optim.Optimizer) -> Env:
    agent = Agent(policy, opt)
    for agent.env.episode in range(EPISODES):
        state = torch.zeros(4)
        for _ in range(STEPS):
            state, reward = agent.env.step(agent.act(state))
            agent.rewards.append(reward)
        agent.update()
    return agent.env


def run_of(train: Train, spool: Path | None) -> tuple[Policy, int, Event | None]:
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=0.01)
    if spool is None:
        return policy, train(policy, opt).steps, None
    with probe.watch(policy, opt, spool=spool, connect="") as run:
        env = train(policy, opt)
        assert run._guard.failures == 0
    (journal,) = spool.iterdir()
    return policy, env.steps, next(e for e in read_journal(journal).events if e.kind == "nonfinite_loss")


@pytest.mark.parametrize(
    ("train", "marker", "op"),
    [
        (by_functions(finish_reinforce), "REINFORCE", "mul"),
        (by_functions(finish_actor_critic), "-log_prob", "mul"),
        (in_one_function, "INLINE", "mul"),
        (by_an_agent, "METHOD", "cumsum"),
        (fault_in_the_loop, "LOOP", "div"),
        (many_steps, "MANY", "mul"),
    ],
    ids=["reinforce", "actor critic", "one function", "agent", "in the loop", "many steps"],
)
def test_line_of_the_bad_factor_is_found(train: Train, marker: str, op: str, tmp_path: Path) -> None:
    plain, plain_steps, _ = run_of(train, None)
    policy, steps, event = run_of(train, tmp_path / "spool")

    assert event is not None and event.origin is not None
    assert event.origin.op == op and event.stacks.forward, event.message
    assert marker in Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1]
    assert steps == plain_steps
    for one, other in zip(policy.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_no_line_of_the_sum_is_blamed_for_what_was_collected(tmp_path: Path) -> None:
    _, _, event = run_of(fault_where_it_was_collected, tmp_path / "spool")
    assert event is not None
    if event.stacks.forward and event.origin is not None:
        line = Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1]
        assert "if is_bad else" in line, event.message
    else:
        assert "could not be run again" in event.message
