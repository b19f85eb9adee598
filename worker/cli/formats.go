package cli

import "pg_stat_backtrace/worker/report/profilefmt"

// The formats of output.
const (
	formatText   = "text"
	formatJSON   = "json"
	formatCSV    = "csv"
	formatBrief  = "brief"
	formatShort  = "short" // the former name of a format that formatBrief replaces
	formatFolded = profilefmt.Folded

	formatPprof      = profilefmt.Pprof
	formatSpeedscope = profilefmt.Speedscope
	formatHTML       = profilefmt.HTML

	// formatCompressed is the format of libwebsockets' compressed backtraces.
	formatCompressed = "compressed"
)
