package cli

import (
	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/serve/export"
)

// addServeFlags adds the flags of the HTTP listener.
func addServeFlags(cmd *cobra.Command, c *worker.ServeConfig) {
	fs := cmd.Flags()
	fs.StringVar(&c.Listen, "listen", "",
		"serve metrics, profiles and the incident screen by HTTP at `ADDRESS`: IP:PORT or unix:/PATH (default: no listener)")
	fs.StringVar(&c.TokenFile, "listen-token-file", "",
		"answer only requests with a token of `FILE`, one a line, after the word operator if it may see query texts; needed if other hosts reach the address") //nolint:lll // a text
	fs.StringSliceVar(&c.Hosts, "listen-host", nil,
		"also answer requests for host `NAME`, such as a DNS name or the name of a proxy (may be given several times)")
	fs.StringVar(&c.CertFile, "listen-tls-cert", "", "use TLS, with the certificate in `FILE` (PEM)")
	fs.StringVar(&c.KeyFile, "listen-tls-key", "", "the key of --listen-tls-cert is in `FILE` (PEM)")
	for _, name := range []string{"listen-token-file", "listen-tls-cert", "listen-tls-key"} {
		_ = cmd.MarkFlagFilename(name)
	}
}

// addExportFlags adds the flags for pushing profiles.
func addExportFlags(cmd *cobra.Command, c *worker.ExportConfig) {
	fs := cmd.Flags()
	fs.StringVar(&c.Pyroscope, "export-pyroscope", "", "push profiles of the server to the Pyroscope at `URL`")
	fs.StringVar(&c.OTLP, "export-otlp", "",
		"push profiles by OTLP over HTTP to `URL` (default path /v1development/profiles)")
	fs.DurationVar(&c.Interval, "export-interval", export.DefaultInterval,
		"push a profile every `DURATION`, from 5s to 15m")
	fs.StringVar(&c.Mode, "export-mode", string(clusterprofile.CPU),
		"`MODE` of the pushed profiles: cpu, offcpu or wall")
	fs.StringVar(&c.HeaderFile, "export-header-file", "",
		"send the headers in `FILE` with profiles, \"Name: value\" a line, such as Authorization and X-Scope-OrgID")
	fs.StringVar(&c.Cluster, flagExportName, "",
		"`NAME` in the label cluster of pushed profiles (default host and data directory)")
	fs.StringVar(&c.SpoolDir, "export-spool-dir", "",
		"keep profiles in `DIRECTORY` while the receiver is down, at most an hour (default the user's cache)")
	_ = cmd.MarkFlagFilename("export-header-file")
	_ = cmd.MarkFlagDirname("export-spool-dir")
	_ = cmd.RegisterFlagCompletionFunc("export-mode",
		cobra.FixedCompletions(clusterprofile.Modes(), cobra.ShellCompDirectiveNoFileComp))
}
