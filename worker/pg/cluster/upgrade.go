package cluster

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"pg_stat_backtrace/ptrace/process"
)

// withArgument are the short options of postgres that take an argument, in all versions from 14 to 19.
const withArgument = "BCcDdfhkNoprStW-"

// maxArguments bounds the arguments of a postmaster, in bytes. A process can have megabytes.
const maxArguments = 128 << 10

// inBinaryUpgrade reports whether a postmaster runs for pg_upgrade, which starts the old and the new server with the
// option -b. Such a server accepts only pg_upgrade's connections, and its objects and counters must not change.
func inBinaryUpgrade(pid int) (bool, error) {
	var data []byte
	var err error
	read := func() { data, err = readProc(pid, "cmdline", maxArguments+1) } // may never return: see ReadTitle
	if !process.WithTimeout(pid, read, func() {}) {
		return false, fmt.Errorf("the arguments of postmaster %d: %w", pid, process.ErrUnreachable)
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("the arguments of postmaster %d: %w", pid, err)
	case len(data) > maxArguments:
		return false, fmt.Errorf("the arguments of postmaster %d have more than %d bytes", pid, maxArguments)
	}
	return hasUpgradeOption(withoutLoader(strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"))), nil
}

// loaderOptions are the options of the dynamic loaders of glibc and musl that take an argument.
//
//nolint:gochecknoglobals // a table
var loaderOptions = []string{
	"--argv0", "--audit", "--glibc-hwcaps-mask", "--glibc-hwcaps-prepend", "--inhibit-rpath", "--library-path", "--preload",
}

// withoutLoader removes the dynamic loader and its options from the arguments of a server that the loader has started, such
// as "ld-linux-x86-64.so.2 --argv0 postgres /usr/bin/postgres -D data".
func withoutLoader(arguments []string) []string {
	if name := path.Base(arguments[0]); !strings.HasPrefix(name, "ld") || !strings.Contains(name, ".so") {
		return arguments
	}
	for i := 1; i < len(arguments); i++ {
		switch word := arguments[i]; {
		case slices.Contains(loaderOptions, word):
			i++
		case !strings.HasPrefix(word, "--"):
			return arguments[i:]
		}
	}
	return arguments[:1]
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
