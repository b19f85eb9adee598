// Package contributing has a test only: CONTRIBUTING.md lists all targets of the Makefile, and all variables of the
// environment that scripts and tests read.
package contributing
