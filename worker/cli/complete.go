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

// completeServers lets a shell complete data directories and process ids of the servers of this host, in all commands.
func completeServers(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completeServers(sub)
	}
	if f := cmd.Flags().Lookup("pgdata"); f != nil {
		delete(f.Annotations, cobra.BashCompSubdirsInDir) // it would come before the function
		_ = cmd.RegisterFlagCompletionFunc(f.Name, completeDirectory)
	}
	if strings.Contains(cmd.Use, "PID") && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completePID
	}
}

// completeDirectory returns the data directories of the servers. If none begins with the word, the shell completes folders.
func completeDirectory(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	found, _, _ := console.AllServers()
	found = slices.DeleteFunc(found, func(dir string) bool { return !strings.HasPrefix(dir, word) || render.VisibleLine(dir) != dir })
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completePID returns process ids of servers that are no arguments yet, with the titles of the processes.
func completePID(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if strings.Contains(cmd.Use, "FILE") && !strings.Contains(cmd.Use, "--") {
		directive = cobra.ShellCompDirectiveDefault // a file is an argument, too
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
