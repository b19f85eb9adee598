package cli

import (
	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker"
)

// addServeFlags adds the flags of the listener.
func addServeFlags(cmd *cobra.Command, c *worker.ServeConfig) {
	fs := cmd.Flags()
	fs.StringVar(&c.Listen, "listen", "",
		"serve metrics and profiles by HTTP at `ADDRESS`: IP:PORT or unix:/PATH (default: no listener)")
	fs.StringVar(&c.TokenFile, "listen-token-file", "",
		"answer only requests with a token of `FILE`, one a line; needed if other hosts reach the address")
	fs.StringVar(&c.CertFile, "listen-tls-cert", "", "use TLS, with the certificate in `FILE` (PEM)")
	fs.StringVar(&c.KeyFile, "listen-tls-key", "", "... and its key in `FILE` (PEM)")
	for _, name := range []string{"listen-token-file", "listen-tls-cert", "listen-tls-key"} {
		_ = cmd.MarkFlagFilename(name)
	}
}
