package console

import "pg_stat_backtrace/worker/report/profilefmt"

// The formats of output.
const (
	FormatText   = "text"
	FormatJSON   = "json"
	FormatCSV    = "csv"
	FormatBrief  = "brief"
	FormatShort  = "short" // the former name of FormatBrief
	FormatFolded = profilefmt.Folded

	FormatPprof      = profilefmt.Pprof
	FormatSpeedscope = profilefmt.Speedscope
	FormatHTML       = profilefmt.HTML

	// FormatCompressed is the format of libwebsockets' compressed backtraces.
	FormatCompressed = "compressed"
)
