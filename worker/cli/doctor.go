package cli

import (
	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/doctor"
	"pg_stat_backtrace/worker/pg/cluster"
)

func newDoctor(version string) *cobra.Command {
	o := doctor.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "doctor [CONNSTRING]",
		Short: "Say whether captures will work here, and what to do if not",
		Long: `Check the kernel's settings, the rights of this user, the server, the worker, the
extension, and the server's symbols. Capture one process of the server. Print a
line for each finding, with its remedy. Run the command as root, or as the user that
runs the worker. The exit status is 1 if captures will not work.`,
		Example: `  pg_stat_backtrace doctor -D /var/lib/postgresql/15/main
  pg_stat_backtrace doctor "host=/run/postgresql dbname=app"`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.ConnString = args[0]
			}
			if err := cluster.CheckConnString(o.ConnString); err != nil {
				return usage(err)
			}
			failed, err := doctor.Run(cmd.Context(), cmd.OutOrStdout(), o)
			if err == nil && failed > 0 {
				err = errReported
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&o.DataDir, "pgdata", "D", "", "the server's data `DIRECTORY`")
	_ = cmd.MarkFlagDirname("pgdata")
	return cmd
}
