# Sourced by tests that compare rollouts: exact_part FILE prints what no machine may change of its responses, in one order: all but
# turns and times.
# shellcheck shell=bash
exact_part() { sed 's/,"chunks":.*,"run_s":[0-9.e+-]*//' "$1" | sort; }
