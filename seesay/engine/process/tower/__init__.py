"""The vision encoder in a process of its own (`VisionConfig.own_process`): it shares no GIL, no crash and no hang."""
