package store

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// At the end of each minute the recorder appends a record with the Sums of this minute to the journal, so that Reader.Sums need not
// decode each sweep of the hour in progress. The time of such a record is the begin of the minute, with the highest bit set. The
// data, compressed by zstd, are numbers as encoding/binary writes them:
//
//	varint   offset of the first record that the Sums count: they count the sweeps from that record up to this one
//	varint   number of texts, then the length and the bytes of each text
//	varint   number of Sums, then for each Sum:
//	varints  wait_event_type, wait_event, backend_type, database, user, application_name, query: indexes of texts
//	varints  samples, top_samples
//	8 bytes  query_id, then active_seconds, then top_stack
//
// If a reader cannot use the Sums of a minute, it counts the sweeps instead, which takes more time.
const (
	sumsMark  = 1 << 63
	sumTexts  = 7
	sumFixed  = 24 // bytes of the three numbers of 8 bytes
	leastSum  = sumTexts + 2 + sumFixed
	eightByte = 8
	// Bounds of a minute. An adder may exceed sumKeys by the samples that it counts without query and application.
	maxSums  = 8 * sumKeys
	maxTexts = sumTexts*maxSums + 1
)

// errSums means that a record of Sums cannot be decoded.
var errSums = errors.New("sums in the journal are damaged")

// A tally adds up the samples of the minute in progress to Sums, for the journal.
type tally struct {
	minutes *adder
	texts   map[int64]string
	minute  int64
	from    int64 // offset of the first sweep's record
}

// count adds a sweep, whose record begins at offset. The first sweep of an empty tally chooses the minute.
func (t *tally) count(s *Sweep, offset int64) {
	if t.minutes == nil {
		*t = tally{minutes: newAdder(minuteSeconds), texts: map[int64]string{}, minute: spanOf(s.Time.UnixMicro(), minuteSeconds), from: offset}
	}
	for i := range s.Rows {
		row := s.Rows[i]
		row.Time = s.Time.UnixMicro()
		if row.QueryID != 0 && row.Query != "" {
			t.texts[row.QueryID] = row.Query
		}
		t.minutes.add(&row, s.Period)
	}
}

// frame returns the record with the Sums of a minute that has ended.
func (t *tally) frame(z *zstd.Encoder) ([]byte, error) {
	return newFrame(z, uint64(t.minute)|sumsMark, encodeSums(t.from, t.minutes.sums(t.texts)))
}

func encodeSums(from int64, list []Sum) []byte {
	positions, texts := map[string]uint64{"": 0}, []string{""}
	var body []byte
	body = binary.AppendUvarint(body, uint64(len(list)))
	for i := range list {
		s := &list[i]
		for _, text := range s.texts() {
			at, found := positions[*text]
			if !found {
				at = uint64(len(texts))
				positions[*text], texts = at, append(texts, *text)
			}
			body = binary.AppendUvarint(body, at)
		}
		body = binary.AppendUvarint(body, uint64(s.Samples))
		body = binary.AppendUvarint(body, uint64(s.TopCount))
		body = binary.LittleEndian.AppendUint64(body, uint64(s.QueryID))
		body = binary.LittleEndian.AppendUint64(body, math.Float64bits(s.Weight))
		body = binary.LittleEndian.AppendUint64(body, uint64(s.TopStack))
	}
	head := binary.AppendUvarint(nil, uint64(from))
	head = binary.AppendUvarint(head, uint64(len(texts)))
	for _, text := range texts {
		head = append(binary.AppendUvarint(head, uint64(len(text))), text...)
	}
	return append(head, body...)
}

// texts returns pointers to the texts of a Sum, in the order in which a record has them.
func (s *Sum) texts() [sumTexts]*string {
	return [...]*string{&s.WaitType, &s.WaitEvent, &s.Type, &s.Database, &s.User, &s.App, &s.Query}
}

// A sumDecoder reads the output of encodeSums. After an error it returns zeros.
type sumDecoder struct {
	b   []byte
	err error
}

func (d *sumDecoder) number() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.b, d.err = nil, errSums
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads the number of elements that follow, at most the parameter most. Each of them has at least as many bytes as the
// parameter least says. If the remaining bytes cannot hold the elements, count sets d.err.
func (d *sumDecoder) count(least, most int) int {
	n := d.number()
	if n > uint64(min(most, len(d.b)/least)) {
		d.b, d.err = nil, errSums
		return 0
	}
	return int(n)
}

func (d *sumDecoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.b, d.err = nil, errSums
		return make([]byte, n)
	}
	part := d.b[:n]
	d.b = d.b[n:]
	return part
}

// decodeSums returns the Sums of a minute, and the offset of the first record that they count.
func decodeSums(b []byte, minute int64) (from int64, list []Sum, err error) {
	d := &sumDecoder{b: b}
	from = int64(d.number())
	texts := make([]string, d.count(1, maxTexts))
	for i := range texts {
		texts[i] = string(d.bytes(d.count(1, len(d.b))))
	}
	list = make([]Sum, d.count(leastSum, maxSums))
	for i := range list {
		s := &list[i]
		s.Time, s.Seconds = minute, minuteSeconds
		for _, text := range s.texts() {
			at := d.number()
			if at >= uint64(len(texts)) {
				return 0, nil, errSums
			}
			*text = texts[at]
		}
		s.Samples, s.TopCount = int64(d.number()), int64(d.number())
		fixed := d.bytes(sumFixed)
		s.QueryID = int64(binary.LittleEndian.Uint64(fixed))
		s.Weight = math.Float64frombits(binary.LittleEndian.Uint64(fixed[eightByte:]))
		s.TopStack = int64(binary.LittleEndian.Uint64(fixed[2*eightByte:]))
		if d.err == nil && !s.possible() {
			d.err = errSums
		}
		if d.err != nil {
			return 0, nil, d.err
		}
	}
	if len(d.b) > 0 && d.err == nil {
		d.err = errSums
	}
	return from, list, d.err
}

// A journalReader reads the Sums of a journal.
type journalReader struct {
	frames *frames
	lo, hi int64 // the span
	enough func(time.Time) bool
	each   func(*Sum) error
	sweeps []sweepFrame
}

// A sweepFrame is the place of a sweep's record in the journal, and its time.
type sweepFrame struct {
	offset, at int64
	counted    bool   // a record of Sums counts this sweep
	sum        uint32 // checksum of the record
}

// read passes the stored Sums of the whole minutes in the span to j.each, one by one. It then adds up the sweeps that these Sums
// do not count, and passes the results to j.each too.
func (j *journalReader) read(ctx context.Context) error {
	if err := j.readMinutes(ctx); err != nil {
		return err
	}
	m := newMinutes(j.each)
	j.dropTwice()
	for _, f := range j.sweeps {
		if f.counted || f.at < j.lo || f.at >= j.hi || j.enough(time.UnixMicro(f.at)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		j.frames.at = f.offset
		at, err := j.frames.next()
		if err != nil {
			return err
		}
		s, err := j.frames.sweep(at)
		if errors.Is(err, errRefused) {
			j.frames.damaged(f.offset, err.Error())
			continue
		}
		if err != nil {
			return err
		}
		for i := range s.Rows {
			if err := m.add(&s.Rows[i], s.Period); err != nil {
				return err
			}
		}
	}
	return m.flush()
}

// readMinutes finds the records of the sweeps, and passes the stored Sums of the minutes that are completely in the span to
// j.each.
func (j *journalReader) readMinutes(ctx context.Context) error {
	for len(j.sweeps) < maxFrames {
		if err := ctx.Err(); err != nil {
			return err
		}
		at, err := j.frames.next()
		switch {
		case errors.Is(err, io.EOF):
			if j.frames.tail != nil {
				j.frames.damage = append(j.frames.damage, j.frames.tail)
			}
			return nil
		case err != nil:
			return err
		case !j.frames.sums:
			j.sweeps = append(j.sweeps, sweepFrame{offset: j.frames.offset(), at: at.UnixMicro(), sum: j.frames.sum})
			continue
		}
		minute := at.UnixMicro()
		if minute < j.lo || minute+time.Minute.Microseconds() > j.hi {
			continue
		}
		from, list, err := j.frames.minute(minute)
		if err != nil || !j.count(from, minute) || j.enough(at) {
			continue
		}
		for i := range list {
			if err := j.each(&list[i]); err != nil {
				return err
			}
		}
	}
	j.frames.damaged(j.frames.at, "more records than an hour can have: the rest is ignored")
	return nil
}

// dropTwice removes the sweeps that the file has a second time.
func (j *journalReader) dropTwice() {
	type key struct {
		at  int64
		sum uint32
	}
	found := make(map[key]bool, len(j.sweeps))
	for _, f := range j.sweeps {
		if f.counted {
			found[key{f.at, f.sum}] = true
		}
	}
	j.sweeps = slices.DeleteFunc(j.sweeps, func(f sweepFrame) bool {
		k := key{f.at, f.sum}
		twice := !f.counted && found[k]
		if found[k] = true; twice {
			j.frames.damaged(f.offset, "a record stands in the file again, and counts once")
		}
		return twice
	})
}

// count marks as counted the sweeps whose records begin at or after the offset from. It returns false if one of them is of another
// minute or already counted, or if no sweep's record begins at from.
func (j *journalReader) count(from, minute int64) bool {
	first := len(j.sweeps)
	for first > 0 && j.sweeps[first-1].offset >= from {
		first--
		if f := j.sweeps[first]; f.counted || spanOf(f.at, minuteSeconds) != minute {
			return false
		}
	}
	if first == len(j.sweeps) || j.sweeps[first].offset != from {
		return false
	}
	for i := range j.sweeps[first:] {
		j.sweeps[first+i].counted = true
	}
	return true
}
