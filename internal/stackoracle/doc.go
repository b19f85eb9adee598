// Package stackoracle contains only tests. For stopped processes of many kinds, the stacks of pg_stat_backtrace must be equal
// to the stacks of gdb and of eu-stack, program counter by program counter, in every thread. Each difference must be listed in
// differences_test.go, with the reason and the side that is right.
//
// It does not depend on the unwinder: it builds the program, runs `capture --format json` and reads the output.
//
// Environment, besides what package pgtest reads:
//
//	STACKORACLE_PROGRAM  the program to test instead of one built from this source (absolute path)
//	STACKORACLE_RANDOM   number of stops of each busy process at arbitrary moments; default 10
package stackoracle
