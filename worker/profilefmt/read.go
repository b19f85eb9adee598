package profilefmt

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/pprof/profile"
)

// Limits of what Read accepts.
const (
	// maxInput is the number of bytes of a profile, after decompression.
	maxInput = 64 << 20
	// maxMessages is the number of samples, labels, locations, lines, functions and the like.
	maxMessages = 8 << 20
	// maxNumbers is the number of location ids and values of all samples, where they are packed. Ids above 127 take two
	// bytes or more, so a file with many of these ids reaches maxInput first.
	maxNumbers = 32 << 20
	// maxTypes is the number of sample types.
	maxTypes = 1000
)

// ErrInput is the error of Read for a file that is not a profile, or too large.
var ErrInput = errors.New("cannot read profile")

// Read reads a profile: a pprof file, compressed or not, or folded stacks as text. Input may be hostile. Read refuses a
// profile beyond one of the limits above with ErrInput.
func Read(r io.Reader) (*profile.Profile, error) {
	in := bufio.NewReader(r)
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
	data, err := io.ReadAll(io.LimitReader(source, maxInput+1))
	switch {
	case err != nil && compressed:
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	case err != nil:
		return nil, err
	case len(data) > maxInput:
		return nil, fmt.Errorf("%w: it has more than %d MB", ErrInput, maxInput>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%w: the file is empty", ErrInput)
	}
	if p, err := parseFolded(data); err == nil {
		return p, nil
	}
	p, err := parsePprof(data)
	if err != nil {
		return nil, fmt.Errorf("%w: it is neither a pprof file nor folded stacks: %w", ErrInput, err)
	}
	return p, nil
}

// parsePprof reads an uncompressed protocol buffer.
func parsePprof(data []byte) (*profile.Profile, error) {
	budget := budget{messages: maxMessages, numbers: maxNumbers}
	if err := countMessages(data, 0, &budget); err != nil {
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

// The fields of profile.proto that hold messages, at each depth: of Profile; of Sample and of Location.
var messageFields = [...]uint64{
	0: 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<11, // sample_type, sample, mapping, location, function, period_type
	1: 1<<3 | 1<<4,                              // label of Sample, line of Location
}

var errForm = errors.New("malformed protocol buffer")

// packedFields are the fields 1 and 2 of Sample: location ids and values. In the other messages of Profile, these
// fields hold one number each.
const packedFields = 1<<1 | 1<<2

// budget has what a profile may still have.
type budget struct{ messages, numbers int }

// spend takes a field with a length off the budget. Such a field costs memory, although it may have a byte or two in
// the file. A string costs as much as a message.
func (b *budget) spend(data []byte, depth int, field uint64) error {
	if b.messages--; b.messages < 0 {
		return fmt.Errorf("it has more than %d parts", maxMessages)
	}
	if depth == 1 && field < 64 && packedFields&(1<<field) != 0 {
		if b.numbers -= countVarints(data); b.numbers < 0 {
			return fmt.Errorf("its samples have more than %d location ids and values", maxNumbers)
		}
	}
	return nil
}

// countVarints returns the number of varints. The last byte of each is below 0x80.
func countVarints(data []byte) (n int) {
	for _, b := range data {
		if b < 0x80 {
			n++
		}
	}
	return n
}

// countMessages checks the form of a message, and takes the messages and packed numbers in it off the budget.
func countMessages(data []byte, depth int, budget *budget) error {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 {
			return errForm
		}
		data = data[n:]
		var size uint64
		switch tag & 7 {
		case 0:
			_, n = binary.Uvarint(data)
			if n <= 0 {
				return errForm
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			size, n = binary.Uvarint(data)
			if n <= 0 {
				return errForm
			}
			data = data[n:]
		case 5:
			size = 4
		default:
			return errForm
		}
		if size > uint64(len(data)) {
			return errForm
		}
		if tag&7 == 2 {
			field := tag >> 3
			if err := budget.spend(data[:size], depth, field); err != nil {
				return err
			}
			if depth < len(messageFields) && field < 64 && messageFields[depth]&(1<<field) != 0 {
				if err := countMessages(data[:size], depth+1, budget); err != nil && depth == 0 {
					return err
				}
			}
		}
		data = data[size:]
	}
	return nil
}

// parseFolded reads folded stacks, as "capture --format folded" prints them.
func parseFolded(data []byte) (*profile.Profile, error) {
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errors.New("not text")
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: &profile.ValueType{}, // profile.Merge needs one
	}
	locations := make(map[string]*profile.Location)
	number := 0
	parts := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at <= 0 {
			return nil, fmt.Errorf("line %d has no count", number)
		}
		count, err := strconv.ParseInt(line[at+1:], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d has no count", number)
		}
		if parts += 1 + strings.Count(line[:at], ";"); parts > maxMessages {
			return nil, fmt.Errorf("it has more than %d frames", maxMessages)
		}
		frames := strings.Split(line[:at], ";")
		s := &profile.Sample{Value: []int64{count}, Location: make([]*profile.Location, len(frames))}
		for i, name := range frames {
			s.Location[len(frames)-1-i] = foldedLocation(p, locations, name)
		}
		p.Sample = append(p.Sample, s)
	}
	if len(p.Sample) == 0 {
		return nil, errors.New("no stack")
	}
	return p, nil
}

// foldedLocation makes the location of a folded frame. Inlined calls become frames of their own.
func foldedLocation(p *profile.Profile, known map[string]*profile.Location, name string) *profile.Location {
	if loc := known[name]; loc != nil {
		return loc
	}
	id := uint64(len(p.Location) + 1)
	fn := &profile.Function{ID: id, Name: strings.TrimSuffix(strings.TrimSpace(name), "_[i]")}
	loc := &profile.Location{ID: id, Line: []profile.Line{{Function: fn}}}
	p.Function = append(p.Function, fn)
	p.Location = append(p.Location, loc)
	known[name] = loc
	return loc
}
