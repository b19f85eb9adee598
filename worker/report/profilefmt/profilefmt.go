// Package profilefmt prints profiles: as text, as JSON, as folded stacks, as a pprof file, as a speedscope file, and as
// an HTML page. Its input is a profile of package github.com/google/pprof/profile, or a file that Read reads. It must
// not know how the stacks were captured.
//
// A profile may come from a file of unknown origin. Names and labels in it are treated as hostile.
package profilefmt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
)

// The formats.
const (
	// Text lists the heaviest stacks, innermost frame first.
	Text = "text"
	// JSON is one document of the type JSONProfile, on one line.
	JSON = "json"
	// Folded has a line for each stack, outermost frame first, as flamegraph.pl reads it.
	Folded = "folded"
	// Pprof is the gzipped protocol buffer that "go tool pprof", Parca and Pyroscope read.
	Pprof = "pprof"
	// Speedscope is the JSON format of https://www.speedscope.app.
	Speedscope = "speedscope"
	// HTML is one self-contained page with a flame graph and tables.
	HTML = "html"
)

// Formats returns the names of the formats, for help texts and completion.
func Formats() []string { return []string{Text, JSON, Folded, Pprof, Speedscope, HTML} }

// ErrFormat is the error of Write for an unknown format.
var ErrFormat = errors.New("unknown format")

var errNoType = errors.New("profile has no sample type")

// Options are the options of Write. Only Format is required.
type Options struct {
	// Format is one of the formats: Text, JSON, Folded, Pprof, Speedscope, HTML.
	Format string
	// Title is the heading of text, json, speedscope and html. The zero value is "Profile".
	Title string
	// Subtitle is a line below the title of text, json and html, about the origin of the profile and its completeness.
	Subtitle string
	// SampleType is the sample type, such as "cpu" or "inuse_space", whose values text and folded print, and which html shows
	// first. The zero value is the profile's default type, or the last type if the profile has no default.
	SampleType string
	// Root names labels, such as "backend_type". Text, folded and speedscope show the values of these labels as the
	// outermost frames of each stack, in this order. The page of html first groups the stacks by the first of these
	// labels. Stacks that differ only in other labels are added up.
	Root []string
	// Top is the number of stacks that text prints. The zero value is 20.
	Top int
	// Noun is the word of text and html for a frame, such as "context". The zero value is "function".
	Noun string
	// Timeline, if not nil, is shown above the graph of html.
	Timeline *Timeline
	// Notes are remarks on the profile, such as the number of lost samples. Text, json and html print them.
	Notes []string
	// Memory bounds the memory that Write uses, and Output the bytes that it writes, for profiles from files of unknown origin. Nil
	// means that only the limits of the format apply.
	Memory, Output *budget.Budget
	// Strict makes Write return an error if the result cannot show a label in Root.
	Strict bool
}

// Write prints a profile in the format o.Format. The profile must be valid, see its method CheckValid. Write does not change the
// meaning of the profile, but no other goroutine may use the profile at the same time. For an unknown format it returns ErrFormat,
// and for an unknown sample type an error that names the types of the profile.
func Write(w io.Writer, p *profile.Profile, o Options) error {
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("profile is not valid: %w", err)
	}
	if o.Title == "" {
		o.Title = "Profile"
	}
	w = o.Output.Writer(w)
	index, err := sampleIndex(p, o.SampleType)
	switch {
	case o.Format == Pprof && o.SampleType == "":
		return writePprof(w, p, o.Memory)
	case err != nil:
		return err
	case o.Format == Pprof:
		p.DefaultSampleType = o.SampleType
		return writePprof(w, p, o.Memory)
	}
	if o.Strict {
		if err := checkRoot(p, o.Root); err != nil {
			return err
		}
	}
	if err := checkWork(p, stackWriter(o.Format)); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<16)
	switch o.Format {
	case Text:
		err = writeText(out, p, index, o)
	case JSON:
		err = writeJSON(out, p, index, o)
	case Folded:
		err = writeFolded(out, p, index, o)
	case Speedscope:
		err = writeSpeedscope(out, p, index, o)
	case HTML:
		err = writeHTML(out, p, index, o)
	default:
		err = fmt.Errorf("%w %q: want one of %s", ErrFormat, o.Format, strings.Join(Formats(), ", "))
	}
	if flushErr := out.Flush(); err == nil { // after a failed write, both errors are equal
		err = flushErr
	}
	return err
}

// writePprof prints a pprof file. It charges half of the memory that was charged for reading the profile, because
// package profile needs at most this much for its lists and for the message before compression.
func writePprof(w io.Writer, p *profile.Profile, memory *budget.Budget) error {
	if err := memory.Charge(memory.Used()/2, "the pprof file"); err != nil {
		return err
	}
	return p.Write(w)
}

// checkRoot returns an error for a label that no sample has.
func checkRoot(p *profile.Profile, root []string) error {
	for _, label := range root {
		if !slices.ContainsFunc(p.Sample, func(s *profile.Sample) bool {
			return len(s.Label[label]) > 0 || len(s.NumLabel[label]) > 0
		}) {
			return noLabel(p, label)
		}
	}
	return nil
}

// noLabel returns the error for a label that the profile does not have. The text lists some labels that the profile has.
func noLabel(p *profile.Profile, label string) error {
	const most, longest = 20, 100
	has := make(map[string]bool)
	for _, s := range p.Sample {
		for key := range s.Label {
			has[key] = true
		}
		for key := range s.NumLabel {
			has[key] = true
		}
		if len(has) > most {
			break
		}
	}
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if len(keys) < most && len(key) < longest {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return fmt.Errorf("profile has no label %q: its samples have no labels", label)
	}
	return fmt.Errorf("profile has no label %q: want one of %s", label, strings.Join(keys, ", "))
}

// stackWriter returns a function for a format. The function returns how often the format prints the stack of a sample.
func stackWriter(format string) func(*profile.Sample) int {
	if format == Speedscope {
		return speedscopeTimes
	}
	return func(*profile.Sample) int { return 1 }
}

// sampleIndex returns the index of the sample type with a name. If the name is empty, it returns the index of the
// profile's default type, or of the last type if the profile has no default.
func sampleIndex(p *profile.Profile, name string) (int, error) {
	if len(p.SampleType) == 0 {
		return 0, errNoType
	}
	if name == "" {
		name = p.DefaultSampleType
		if i := indexOfType(p, name); i >= 0 {
			return i, nil
		}
		return len(p.SampleType) - 1, nil
	}
	if i := indexOfType(p, name); i >= 0 {
		return i, nil
	}
	const most = 20
	var names []string
	for _, t := range p.SampleType[:min(most, len(p.SampleType))] {
		names = append(names, cut(t.Type))
	}
	return 0, fmt.Errorf("profile has no sample type %q: want one of %s", name, strings.Join(names, ", "))
}

func indexOfType(p *profile.Profile, name string) int {
	return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == name })
}
