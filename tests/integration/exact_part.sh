# Sourced by tests that compare rollouts: exact_part FILE prints the part of its responses that may never change, in one order: all
# fields except turns and times.
# shellcheck shell=bash
exact_part() { sed 's/,"chunks":.*,"run_s":[0-9.e+-]*//' "$1" | sort; }
