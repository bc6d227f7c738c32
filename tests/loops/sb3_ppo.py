"""PPO of stable-baselines3 on a small environment: rollouts without gradients, then updates."""

import gymnasium
import numpy as np
from stable_baselines3 import PPO

STEPS = 160


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.left = self.np_random.uniform(-1, 1, 4).astype(np.float32), 20
        return self.state, {}

    def step(self, action):
        self.state = np.clip(self.state * 0.9 + 0.1 * (2 * action - 1), -1, 1).astype(np.float32)
        self.left -= 1
        return self.state, float(self.state.sum()), self.left == 0, False, {}


def train(steps, watch, tick):
    agent = PPO("MlpPolicy", Corridor(), n_steps=64, batch_size=16, n_epochs=2, seed=7, device="cpu")
    watch(agent.policy, agent.policy.optimizer)
    agent.policy.optimizer.register_step_post_hook(lambda *_: tick())
    agent.learn(64 * (steps // 8))
    return [agent.policy]
