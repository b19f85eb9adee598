package cluster

import (
	"fmt"
	"strings"
)

// withArgument are the short options of postgres that take an argument, in all versions from 14 to 19.
const withArgument = "BCcDdfhkNoprStW-"

// maxArguments bounds the arguments of a postmaster, in bytes. A process can have megabytes.
const maxArguments = 128 << 10

// inBinaryUpgrade reports whether a postmaster runs for pg_upgrade, which starts the old and the new server with the
// option -b. Such a server accepts only pg_upgrade's connections, and its objects and counters must not change.
func inBinaryUpgrade(pid int) (bool, error) {
	data, err := readProc(pid, "cmdline", maxArguments+1)
	switch {
	case err != nil:
		return false, fmt.Errorf("the arguments of postmaster %d: %w", pid, err)
	case len(data) > maxArguments:
		return false, fmt.Errorf("the arguments of postmaster %d have more than %d bytes", pid, maxArguments)
	}
	return hasUpgradeOption(strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")), nil
}

// hasUpgradeOption searches for -b as getopt(3) does, also among options that share a dash.
func hasUpgradeOption(arguments []string) bool {
	for i := 1; i < len(arguments); i++ {
		word := arguments[i]
		if len(word) < 2 || word[0] != '-' || word == "--" {
			return false // no further options
		}
		end := strings.IndexAny(word[1:], withArgument) + 1
		switch {
		case end == 0:
			end = len(word)
		case end == len(word)-1:
			i++ // the argument is the next word
		}
		if strings.Contains(word[1:end], "b") {
			return true
		}
	}
	return false
}
