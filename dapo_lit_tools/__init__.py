"""What stands beside the trainer: conversion from other trainers, plans, replays, and looks at a machine or a config.

The commands are in commands/. dapo_lit imports nothing of this package.
"""
