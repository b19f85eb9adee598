package verb

import (
	"slices"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// Values of the setting pg_stat_backtrace.format. formatShort is the former name of formatBrief.
const (
	formatText  = "text"
	formatBrief = "brief"
	formatShort = "short"
)

// checkFormat returns an error for an unknown value of the setting format.
func checkFormat(name, value string) error {
	if !slices.Contains([]string{formatText, formatBrief, formatShort}, strings.ToLower(value)) {
		return invalid(name, value, "It is text, brief or short.")
	}
	return nil
}

// stackText prints a stack in the format that the request's setting names: text is the default.
func stackText(req *spool.Request, t *backtrace.Trace, o render.Options) string {
	switch strings.ToLower(req.Settings["format"]) {
	case formatBrief, formatShort:
		return cutLines(render.Brief(t, o), o.MaxBytes)
	}
	return render.Text(t, o)
}

// cutLines cuts a text that has more bytes than the parameter most at the end of a line, and adds a remark. If most is
// 0, it returns the text unchanged.
func cutLines(text string, most int) string {
	if most <= 0 || len(text) <= most {
		return text
	}
	end := strings.LastIndexByte(text[:most], '\n')
	return text[:max(end, 0)] + "\n(the rest is left out)"
}
