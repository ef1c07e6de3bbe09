"""The main job: a byte-level GPT, written for one device, and the real text it learns."""
