package profilefmt

import (
	"encoding/binary"
	"errors"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
)

// The memory of the parts of a profile in package profile, in bytes: the part itself, its copies, and its entries in lists, which
// grow by doubling, and in maps by id.
const (
	typeBytes     = 96
	sampleBytes   = 160
	numberBytes   = 24 // a location id with its pointer to the location, or a value
	commentBytes  = 64
	labelsBytes   = 448
	labelBytes    = 96
	mappingBytes  = 256
	locationBytes = 224
	lineBytes     = 64
	functionBytes = 256
	textBytes     = 80 // a string, without its content
	// frameBytes is the memory of a frame of a folded stack: its name and its location.
	frameBytes = 24
	// lineKeyBytes is the memory of a line in the key of a location.
	lineKeyBytes = 128
)

// A messagePart describes the memory of a kind of message or text of profile.proto.
type messagePart struct {
	bytes  int64  // memory of one message without its parts
	reason string // name of the part in an error of the budget
	// inner has the messages inside of this message, by the number of their field. Bit n of numbers is set if field n is a
	// repeated field of integers.
	inner   map[uint64]messagePart
	numbers uint64
	// each is the memory of one integer of the fields in numbers.
	each int64
	// labels is set for the message Label: package profile makes a map for each kind of labels of a sample.
	labels bool
}

// profilePart describes the message Profile of profile.proto.
//
//nolint:gochecknoglobals // read only
var profilePart = messagePart{
	inner: map[uint64]messagePart{
		1: {bytes: typeBytes, reason: "sample types"},
		2: {
			bytes: sampleBytes, reason: "samples", numbers: 1<<1 | 1<<2, each: numberBytes,
			inner: map[uint64]messagePart{3: {bytes: labelBytes, reason: "labels", labels: true}},
		},
		3: {bytes: mappingBytes, reason: "mappings"},
		4: {
			bytes: locationBytes, reason: "locations",
			inner: map[uint64]messagePart{4: {bytes: lineBytes, reason: "lines"}},
		},
		5:  {bytes: functionBytes, reason: "functions"},
		6:  {bytes: textBytes, reason: "strings"},
		11: {bytes: typeBytes, reason: "period types"},
	},
	numbers: 1 << 13, each: commentBytes, reason: "comments",
}

var errForm = errors.New("malformed protocol buffer")

// chargeMessages charges the memory that package profile needs to parse data. It returns errForm if data is malformed.
func chargeMessages(data []byte, memory *budget.Budget) error {
	c := charger{memory: memory}
	if err := c.message(data, &profilePart); err != nil {
		return err
	}
	return c.flush("samples")
}

// A charger collects small charges, and passes them to the budget together.
type charger struct {
	memory  *budget.Budget
	pending int64
}

// charge adds n bytes to the pending ones, and charges the budget with all of them once they are 64 kB or more.
func (c *charger) charge(n int64, reason string) error {
	const few = 64 << 10
	if c.pending += n; c.pending < few {
		return nil
	}
	return c.flush(reason)
}

func (c *charger) flush(reason string) error {
	n := c.pending
	c.pending = 0
	return c.memory.Charge(n, reason)
}

// message charges the parts of a message. It does not check the contents of fields that p does not describe: package profile
// refuses malformed ones.
func (c *charger) message(data []byte, p *messagePart) error {
	var kinds uint64 // kinds of labels so far, see labelKinds
	for len(data) > 0 {
		tag, content, n := field(data)
		if n == 0 {
			return errForm
		}
		data = data[n:]
		number := tag >> 3
		if number < 64 && p.numbers&(1<<number) != 0 {
			count := int64(1)
			if tag&7 == 2 {
				count = int64(countVarints(content))
			}
			if err := c.charge(count*p.each, p.reason); err != nil {
				return err
			}
		}
		if tag&7 != 2 {
			continue
		}
		inner, ok := p.inner[number]
		if !ok {
			inner.reason = p.reason
		}
		if err := c.part(content, &inner, &kinds); err != nil {
			return err
		}
	}
	return nil
}

// part charges one field of a message with its content.
func (c *charger) part(content []byte, p *messagePart, kinds *uint64) error {
	n := p.bytes
	switch {
	case p.labels:
		if more := labelKinds(content) &^ *kinds; more != 0 {
			*kinds |= more
			for ; more != 0; more &= more - 1 {
				n += labelsBytes
			}
		}
	case p.bytes == textBytes:
		n += int64(len(content))
	}
	if err := c.charge(n, p.reason); err != nil {
		return err
	}
	if p.inner == nil && p.numbers == 0 {
		return nil
	}
	return c.message(content, p)
}

// labelKinds returns a set bit for each kind of value that a label has: text, number, unit.
func labelKinds(content []byte) (kinds uint64) {
	for len(content) > 0 {
		tag, _, n := field(content)
		if n == 0 {
			break
		}
		content = content[n:]
		kinds |= 1 << min(tag>>3, 63)
	}
	const text, number, unit = 1 << 2, 1 << 3, 1 << 4
	return kinds & (text | number | unit)
}

// field reads the first field of a message. It returns the field's tag, its content if the field has a length, and the number of
// bytes of the field; 0: the field is malformed.
func field(data []byte) (tag uint64, content []byte, n int) {
	tag, n = binary.Uvarint(data)
	if n <= 0 {
		return 0, nil, 0
	}
	var size uint64
	var more int
	switch tag & 7 {
	case 0, 2:
		if size, more = binary.Uvarint(data[n:]); more <= 0 {
			return 0, nil, 0
		}
		n += more
		if tag&7 == 0 {
			size = 0
		}
	case 1:
		size = 8
	case 5:
		size = 4
	default:
		return 0, nil, 0
	}
	if size > uint64(len(data)-n) {
		return 0, nil, 0
	}
	return tag, data[n : n+int(size)], n + int(size)
}

// countVarints returns the number of varints in data: only the last byte of each is below 0x80.
func countVarints(data []byte) (n int) {
	for _, b := range data {
		if b < 0x80 {
			n++
		}
	}
	return n
}

// Merge merges profiles that Read has charged to the budget, and adds up their values. It charges the copies that package profile
// makes, among them a key for each sample with the text of its labels. It returns the error of the budget if they exceed it.
func Merge(list []*profile.Profile, memory *budget.Budget) (*profile.Profile, error) {
	if err := memory.Charge(memory.Used(), "the sum of the profiles"); err != nil {
		return nil, err
	}
	c := charger{memory: memory}
	for _, p := range list {
		for _, loc := range p.Location {
			if err := c.charge(lineKeyBytes*int64(len(loc.Line)), "the sum of the profiles"); err != nil {
				return nil, err
			}
		}
		for _, s := range p.Sample {
			if err := c.charge(keyBytes(s), "the sum of the profiles"); err != nil {
				return nil, err
			}
		}
	}
	if err := c.flush("the sum of the profiles"); err != nil {
		return nil, err
	}
	return profile.Merge(list)
}

// keyBytes returns the memory of a sample's key in package profile. Each number takes up to ten bytes, and the key grows by
// doubling.
func keyBytes(s *profile.Sample) int64 {
	const number = 10
	n := number * (2 + len(s.Location))
	for key, values := range s.Label {
		n += len(key) + number
		for _, v := range values {
			n += len(v) + number
		}
	}
	for key, values := range s.NumLabel {
		n += len(key) + number*(1+len(values))
	}
	for _, units := range s.NumUnit {
		for _, unit := range units {
			n += len(unit) + number
		}
	}
	return 2 * int64(n)
}
