package profilefmt

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
)

// Limits of Read besides the budgets.
const (
	// maxInput is the greatest number of bytes of a profile after decompression.
	maxInput = 64 << 20
	// maxTypes is the greatest number of sample types.
	maxTypes = 1000
)

// ErrInput is the error of Read for a file that is not a profile, or that is too large.
var ErrInput = errors.New("cannot read profile")

// Read reads a profile: a pprof file, compressed or not, or folded stacks as text. The input may be hostile. Read credits the
// bytes of r to the budget memory and to the budgets in more. It charges the memory of the profile to the budget memory only. It
// returns ErrInput for a profile that exceeds a budget or a limit, or is not a profile. Several profiles may share the budgets.
func Read(r io.Reader, memory *budget.Budget, more ...*budget.Budget) (*profile.Profile, error) {
	in := bufio.NewReader(budget.Reader(r, append(more, memory)...))
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var source io.Reader = in
	compressed := bytes.Equal(magic, []byte{0x1f, 0x8b})
	if compressed {
		unzip, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInput, err)
		}
		source = unzip
	}
	data, err := readAll(source, memory)
	switch {
	case errors.Is(err, budget.ErrExceeded), err != nil && compressed:
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	case err != nil:
		return nil, err
	case len(data) > maxInput:
		return nil, fmt.Errorf("%w: it has more than %d MB", ErrInput, maxInput>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%w: the file is empty", ErrInput)
	}
	p, folded := parseFolded(data, memory)
	if folded == nil {
		return p, nil
	}
	if errors.Is(folded, budget.ErrExceeded) {
		return nil, fmt.Errorf("%w: %w", ErrInput, folded)
	}
	p, err = parsePprof(data, memory)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, budget.ErrExceeded):
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	return nil, fmt.Errorf("%w: it is neither folded stacks (%w) nor a pprof file (%w)", ErrInput, folded, err)
}

// readAll reads at most maxInput+1 bytes, so that the caller notices a longer input.
func readAll(r io.Reader, memory *budget.Budget) ([]byte, error) {
	var data []byte
	for len(data) <= maxInput {
		if len(data) == cap(data) {
			grown := max(64<<10, min(2*len(data), maxInput+1))
			if err := memory.Charge(int64(grown), "the content of the file"); err != nil {
				return nil, err
			}
			data = append(make([]byte, 0, grown), data...)
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, err
		}
	}
	return data, nil
}

// parsePprof reads an uncompressed protocol buffer.
func parsePprof(data []byte, memory *budget.Budget) (*profile.Profile, error) {
	if err := chargeMessages(data, memory); err != nil {
		return nil, err
	}
	p, err := profile.ParseUncompressed(data)
	if err != nil {
		return nil, err
	}
	switch n := len(p.SampleType); {
	case n == 0:
		return nil, errNoType
	case n > maxTypes:
		return nil, fmt.Errorf("it has more than %d sample types", maxTypes)
	}
	return p, p.CheckValid()
}

// parseFolded reads folded stacks, as "capture --format folded" prints them. It ignores comments, see isComment.
func parseFolded(data []byte, memory *budget.Budget) (*profile.Profile, error) {
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errors.New("not text")
	}
	if err := memory.Charge(int64(len(data)), "the text"); err != nil {
		return nil, err
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: &profile.ValueType{}, // profile.Merge needs one
	}
	locations := make(map[string]*profile.Location)
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		stack, count, ok := cutCount(line)
		switch {
		case line == "", isComment(line):
			continue
		case !ok:
			return nil, fmt.Errorf("line %d has no count", number)
		}
		depth := 1 + strings.Count(stack, ";")
		if err := memory.Charge(sampleBytes+int64(depth)*frameBytes, "stacks"); err != nil {
			return nil, err
		}
		frames := strings.Split(stack, ";")
		s := &profile.Sample{Value: []int64{count}, Location: make([]*profile.Location, len(frames))}
		for i, name := range frames {
			loc, err := foldedLocation(p, locations, name, memory)
			if err != nil {
				return nil, err
			}
			s.Location[len(frames)-1-i] = loc
		}
		p.Sample = append(p.Sample, s)
	}
	if len(p.Sample) == 0 {
		return nil, errors.New("no stack")
	}
	return p, nil
}

// cutCount splits a line into the stack and the number after its last space. ok is false if there is no number.
func cutCount(line string) (stack string, count int64, ok bool) {
	at := strings.LastIndexByte(line, ' ')
	if at <= 0 {
		return "", 0, false
	}
	count, err := strconv.ParseInt(line[at+1:], 10, 64)
	return line[:at], count, err == nil
}

// isComment reports whether a line is a comment: it begins with "#". The name of the first frame may begin with "#" too. Such a
// line has a count, and either no space after the "#" or several frames.
func isComment(line string) bool {
	if line[0] != '#' {
		return false
	}
	stack, _, ok := cutCount(line)
	return !ok || stack == "#" || stack[1] == ' ' && !strings.Contains(stack, ";")
}

// foldedLocation returns the location of a folded frame. Each different name has one location, also the name of an
// inlined call.
func foldedLocation(
	p *profile.Profile, known map[string]*profile.Location, name string, memory *budget.Budget,
) (*profile.Location, error) {
	if loc := known[name]; loc != nil {
		return loc, nil
	}
	if err := memory.Charge(functionBytes+locationBytes+lineBytes+textBytes, "functions"); err != nil {
		return nil, err
	}
	id := uint64(len(p.Location) + 1)
	fn := &profile.Function{ID: id, Name: strings.TrimSuffix(strings.TrimSpace(name), "_[i]")}
	loc := &profile.Location{ID: id, Line: []profile.Line{{Function: fn}}}
	p.Function = append(p.Function, fn)
	p.Location = append(p.Location, loc)
	known[name] = loc
	return loc, nil
}
