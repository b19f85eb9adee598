// Package stackoracle contains only tests. For stopped processes of many kinds, the program's stacks must equal the
// stacks of gdb and of eu-stack, program counter by program counter, in every thread. Every difference has to be
// listed, with the reason and the side that is right; see differences_test.go.
//
// It does not depend on the unwinder: it builds the program, runs `capture --format json` and reads the output.
//
// Environment, besides what package pgtest reads:
//
//	STACKORACLE_PROGRAM  the program to test instead of one built from this source (absolute path)
//	STACKORACLE_RANDOM   how often each busy process is stopped at an arbitrary moment; default 10
package stackoracle
