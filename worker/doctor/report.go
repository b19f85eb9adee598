package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// Report has the findings of all checks.
type Report struct {
	findings []finding
}

// add adds findings. Their texts may have names that are not in UTF-8: such bytes become \xNN.
func (r *Report) add(findings ...finding) {
	for _, f := range findings {
		f.text = spool.Text([]byte(f.text))
		r.findings = append(r.findings, f)
	}
}

// count returns the number of findings with a mark.
func (r *Report) count(m mark) (n int) {
	for _, f := range r.findings {
		if f.mark == m {
			n++
		}
	}
	return n
}

// Works reports whether captures work: no finding has the mark FAIL.
func (r *Report) Works() bool { return r.count(bad) == 0 }

// Verdict sums up the report in one line.
func (r *Report) Verdict() string {
	parts := []string{"works"}
	if n := r.count(bad); n > 0 {
		parts = []string{"does not work", units.Count(n, "failure")}
	}
	if n := r.count(warn); n > 0 {
		parts = append(parts, units.Count(n, "thing")+" to mend")
	} else if r.Works() {
		parts = append(parts, "nothing to mend")
	}
	if n := r.count(absent); n > 0 {
		parts = append(parts, units.Count(n, "feature")+" not available here")
	} else {
		parts = append(parts, "all features available")
	}
	return strings.Join(parts, "; ")
}

// worstFirst returns the findings in the order FAIL, warn, n/a, ok. Findings with the same mark keep their order.
func (r *Report) worstFirst() []finding {
	sorted := make([]finding, 0, len(r.findings))
	for _, m := range []mark{bad, warn, absent, good} {
		for _, f := range r.findings {
			if f.mark == m {
				sorted = append(sorted, f)
			}
		}
	}
	return sorted
}

// Text writes the verdict, an empty line, and a line for each finding, the worst first. The remedy, if any, is on the
// line after it. width is the number of columns of the terminal, for which texts are broken, except remedies
// and texts with long paths; 0: none is broken.
func (r *Report) Text(w io.Writer, width int) error {
	var b strings.Builder
	b.WriteString(r.Verdict() + "\n\n")
	// The texts contain names of roles, databases and directories, which may contain control characters.
	lines := func(first, text string) {
		room := max(0, width-len(first))
		if slices.ContainsFunc(strings.Fields(text), func(word string) bool { return table.Width(word) > room }) {
			room = 0 // a path that is broken cannot be copied
		}
		for _, line := range table.Lines(render.VisibleLine(text), room) {
			b.WriteString(first + line + "\n")
			first = strings.Repeat(" ", len(first))
		}
	}
	for _, f := range r.worstFirst() {
		lines(fmt.Sprintf("%-5s %-14s ", f.mark, f.what+":"), f.text)
		if f.hint != "" && f.mark != good {
			fmt.Fprintf(&b, "%20s -> %s\n", "", render.VisibleLine(f.hint)) // not broken: a command must be fit to be copied
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// JSONReport is the result of all checks.
type JSONReport struct {
	// Verdict is the first line of the text.
	Verdict string `json:"verdict"`
	Works   bool   `json:"works"`
	// Failures, ToMend and NotAvailable are the numbers of findings with the results fail, warn and n/a.
	Failures     int `json:"failures"`
	ToMend       int `json:"to_mend"`
	NotAvailable int `json:"not_available"`
	// Findings begin with the worst.
	Findings []jsonFinding `json:"findings"`
}

// jsonFinding is the result of one check.
type jsonFinding struct {
	// Result is ok, n/a, warn or fail.
	Result  string `json:"result"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
	// Remedy says what the user can do; empty: nothing.
	Remedy string `json:"remedy,omitempty"`
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	object := JSONReport{
		Verdict: r.Verdict(), Works: r.Works(), Failures: r.count(bad), ToMend: r.count(warn),
		NotAvailable: r.count(absent), Findings: []jsonFinding{},
	}
	for _, f := range r.worstFirst() {
		e := jsonFinding{Result: strings.ToLower(string(f.mark)), Subject: f.what, Text: f.text}
		if f.mark != good {
			e.Remedy = f.hint
		}
		object.Findings = append(object.Findings, e)
	}
	return render.JSONEncoder(w).Encode(object)
}
