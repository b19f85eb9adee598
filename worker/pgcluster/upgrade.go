package pgcluster

import (
	"fmt"
	"os"
	"strings"
)

// withArgument are the short options of postgres that take an argument, of all versions from 14 to 18.
const withArgument = "BCcDdfhkNoprStW-"

// inBinaryUpgrade reports whether a postmaster runs for pg_upgrade alone: started with the option -b, it takes no
// connections but that program's, which needs the objects and the numbers of the server left as they are. pg_upgrade
// starts the old and the new server so.
func inBinaryUpgrade(pid int) (bool, error) {
	data, err := os.ReadFile(procPath(pid, "cmdline"))
	if err != nil {
		return false, fmt.Errorf("the arguments of postmaster %d: %w", pid, err)
	}
	return hasUpgradeOption(strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")), nil
}

// hasUpgradeOption looks for -b as getopt(3) does, also among options that share a dash.
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
