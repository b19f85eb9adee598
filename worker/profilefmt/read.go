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

// Limits of what Read accepts. A profile takes memory in proportion to its file: a file of N bytes has at most
// freeInput + maxRatio*N bytes after decompression, and at most maxInput. The data structures of D bytes take some
// freeMemory + memoryRatio*D bytes. Real profiles are below a tenth of each ratio.
const (
	maxInput    = 64 << 20
	freeInput   = 1 << 20
	maxRatio    = 100
	freeMemory  = 16 << 20
	memoryRatio = 32
	// maxTypes is the number of sample types.
	maxTypes = 1000
)

// ErrInput is the error of Read for a file that is not a profile, or too large.
var ErrInput = errors.New("cannot read profile")

// Read reads a profile: a pprof file, compressed or not, or folded stacks as text. Input may be hostile. Read refuses a
// profile beyond one of the limits above with ErrInput.
func Read(r io.Reader) (*profile.Profile, error) {
	count := &counter{r: r}
	in := bufio.NewReader(count)
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
	data, err := count.readAll(source)
	switch {
	case errors.Is(err, errRatio):
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	case err != nil && compressed:
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	case err != nil:
		return nil, err
	case len(data) > maxInput:
		return nil, fmt.Errorf("%w: it has more than %d MB", ErrInput, maxInput>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%w: the file is empty", ErrInput)
	}
	p, notFolded := parseFolded(data)
	if notFolded == nil {
		return p, nil
	}
	p, err = parsePprof(data)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(notFolded, errNotText):
		return nil, fmt.Errorf("%w: it is not folded stacks, which are text, and not a pprof file: %w", ErrInput, err)
	}
	return nil, fmt.Errorf("%w: it is neither folded stacks (%w) nor a pprof file: %w", ErrInput, notFolded, err)
}

// errRatio means that a compressed file holds next to nothing but repetitions.
var errRatio = fmt.Errorf("its contents are more than %d times as large as the compressed file", maxRatio)

// counter counts the bytes of a file.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// readAll reads the decompressed contents of the counted file, at most maxInput+1 bytes.
func (c *counter) readAll(source io.Reader) ([]byte, error) {
	var data bytes.Buffer
	for data.Len() <= maxInput {
		_, err := io.CopyN(&data, source, min(64<<10, maxInput+1-int64(data.Len())))
		switch {
		case int64(data.Len()) > freeInput+maxRatio*c.n:
			return nil, errRatio
		case errors.Is(err, io.EOF):
			return data.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
	return data.Bytes(), nil
}

// parsePprof reads an uncompressed protocol buffer.
func parsePprof(data []byte) (*profile.Profile, error) {
	budget := budget(freeMemory + memoryRatio*len(data))
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

// costs are bytes of memory for a message, by its depth and its field in profile.proto: for what package profile makes of
// it, and for what the formats make of that.
var costs = [...]map[uint64]int{ //nolint:gochecknoglobals // a table
	0: {1: 128, 2: 512, 3: 256, 4: 256, 5: 256},
	1: {3: 256, 4: 64},
}

const (
	// fieldCost is the cost of any other field with a length, such as a string, beside its bytes.
	fieldCost = 32
	// numberCost is the cost of a location id or a value of a sample.
	numberCost = 16
)

// packedFields are the fields 1 and 2 of Sample: location ids and values. In the other messages of Profile, these
// fields hold one number each.
const packedFields = 1<<1 | 1<<2

// budget is the memory that a profile may still take, in bytes.
type budget int

// spend takes a field off the budget. It costs memory, although it may have a byte or two in the file.
func (b *budget) spend(data []byte, depth int, field uint64, hasLength bool) error {
	cost := numberCost
	if hasLength {
		cost = fieldCost + len(data)
		if depth < len(costs) && costs[depth][field] != 0 {
			cost = costs[depth][field]
		}
		if depth == 1 && field < 64 && packedFields&(1<<field) != 0 {
			cost += numberCost * countVarints(data)
		}
	}
	if *b -= budget(cost); *b < 0 {
		return fmt.Errorf("it would take more than %d MB and %d times the size of its contents in memory", freeMemory>>20, memoryRatio)
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

// countMessages checks the form of a message, and takes its fields off the budget.
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
		field := tag >> 3
		if err := budget.spend(data[:size], depth, field, tag&7 == 2); err != nil {
			return err
		}
		if tag&7 == 2 {
			if depth < len(messageFields) && field < 64 && messageFields[depth]&(1<<field) != 0 {
				if err := countMessages(data[:size], depth+1, budget); err != nil && (depth == 0 || *budget < 0) {
					return err
				}
			}
		}
		data = data[size:]
	}
	return nil
}

// errNotText is the error of parseFolded for a file that is not text.
var errNotText = errors.New("not text")

// frameCost and nameCost are bytes of memory for a frame of folded stacks, and for each different name.
const (
	frameCost = 40
	nameCost  = 512
)

// parseFolded reads folded stacks, as "capture --format folded" prints them.
func parseFolded(data []byte) (*profile.Profile, error) {
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errNotText
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: &profile.ValueType{}, // profile.Merge needs one
	}
	locations := make(map[string]*profile.Location)
	number := 0
	budget := freeMemory + memoryRatio*len(data)
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || isComment(line) {
			continue
		}
		stack, count, ok := cutCount(line)
		if !ok {
			return nil, fmt.Errorf("line %d has no count", number)
		}
		// Counted before they are made.
		if budget -= nameCost + frameCost*(1+strings.Count(stack, ";")); budget < 0 {
			return nil, tooMany(number)
		}
		frames := strings.Split(stack, ";")
		s := &profile.Sample{Value: []int64{count}, Location: make([]*profile.Location, len(frames))}
		before := len(locations)
		for i, name := range frames {
			s.Location[len(frames)-1-i] = foldedLocation(p, locations, name)
		}
		p.Sample = append(p.Sample, s)
		if budget -= nameCost * (len(locations) - before); budget < 0 {
			return nil, tooMany(number)
		}
	}
	if len(p.Sample) == 0 {
		return nil, errors.New("no stack")
	}
	return p, nil
}

func tooMany(line int) error {
	return fmt.Errorf("line %d: there are too many frames for the size of the file", line)
}

// cutCount splits a line into the stack and the count.
func cutCount(line string) (stack string, count int64, ok bool) {
	at := strings.LastIndexByte(line, ' ')
	if at <= 0 {
		return "", 0, false
	}
	count, err := strconv.ParseInt(line[at+1:], 10, 64)
	return line[:at], count, err == nil
}

// isComment reports whether a line is a comment. The name of the first frame may begin with "#" too: such a line has a
// count, and either no space behind the "#" or several frames.
func isComment(line string) bool {
	if line[0] != '#' {
		return false
	}
	stack, _, ok := cutCount(line)
	return !ok || stack == "#" || stack[1] == ' ' && !strings.Contains(stack, ";")
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
