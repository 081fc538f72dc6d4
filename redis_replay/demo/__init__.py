"""The demo: a small policy trained by GRPO on reasoning-gym prompts, through the store only."""
