"""Tools around the trainer: conversion from other trainers, plans, replays, checks of a machine, schemas, the pages.

The commands are in commands/. dapo_lit imports nothing of this package.
"""
