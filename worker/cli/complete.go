package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/node"
)

// completeServers adds shell completion to cmd and all its subcommands: data directories for -D, and process ids for arguments,
// both of the servers of this host.
func completeServers(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completeServers(sub)
	}
	if f := cmd.Flags().Lookup("pgdata"); f != nil {
		delete(f.Annotations, cobra.BashCompSubdirsInDir) // otherwise cobra would use it instead of the function
		_ = cmd.RegisterFlagCompletionFunc(f.Name, completeDirectory)
	}
	if strings.Contains(cmd.Use, "PID") && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completePID
	}
}

// completeDirectory returns the servers' data directories that begin with word. If there are none, the shell completes
// directories.
func completeDirectory(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	found, _, _ := console.AllServers()
	found = slices.DeleteFunc(found, func(dir string) bool { return !strings.HasPrefix(dir, word) || render.VisibleLine(dir) != dir })
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completePID returns the process ids of servers, with the titles of the processes, except process ids that are arguments already.
func completePID(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if strings.Contains(cmd.Use, "FILE") && !strings.Contains(cmd.Use, "--") {
		directive = cobra.ShellCompDirectiveDefault // arguments can also be files
	}
	first := strings.Contains(cmd.Use, "FUNCTION") && len(args) == 0
	if f := cmd.Flags().Lookup("pgdata"); first || f != nil && f.Changed {
		return nil, directive
	}
	const most = 1000
	var list []cobra.Completion
	servers, _, _ := node.Running()
	for _, s := range servers {
		if c, err := cluster.ByDataDir(s.DataDir); err != nil || c.PostmasterPID != s.PID {
			continue
		}
		pids, _ := process.Children(s.PID)
		for _, pid := range pids {
			text := strconv.Itoa(pid)
			if len(list) < most && strings.HasPrefix(text, word) && !slices.Contains(args, text) {
				list = append(list, fmt.Sprintf("%s\t%s", text, render.VisibleLine(cluster.Title(pid))))
			}
		}
	}
	return list, directive
}
