package bpf

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestLayout: the numbers are those that bpftool finds in the same description.
func TestLayout(t *testing.T) {
	const file = "/sys/kernel/btf/vmlinux"
	kernel, err := os.ReadFile(file)
	if err != nil {
		t.Skip(err)
	}
	l, err := layoutOf(kernel)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dump, err := exec.CommandContext(t.Context(), "bpftool", "btf", "dump", "file", file).Output()
	if err != nil {
		t.Skipf("bpftool: %v", err)
	}
	want := map[string]int{}
	within, nameless := "", ""
	for line := range strings.Lines(string(dump)) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "["):
			if within = ""; words[0] == nameless {
				within = "'mm_struct'"
			}
			switch strings.Join(words[1:3], " ") {
			case "STRUCT 'task_struct'", "STRUCT 'thread_info'", "STRUCT 'mm_struct'":
				within = words[2]
			case "FUNC 'bpf_task_from_pid'", "FUNC 'bpf_task_release'":
				want[words[2]], _ = strconv.Atoi(strings.Trim(words[0], "[]"))
			}
		case within != "" && len(words) > 2:
			bits, _ := strconv.Atoi(strings.TrimPrefix(words[2], "bits_offset="))
			want[within+words[0]] = bits / 8
			if within == "'mm_struct'" && words[0] == "'(anon)'" && bits == 0 { // all others are in that
				nameless = "[" + strings.TrimPrefix(words[1], "type_id=") + "]"
			}
		}
	}
	got := map[string]int{
		"'bpf_task_from_pid'": int(l.find), "'bpf_task_release'": int(l.release),
		"'task_struct''on_cpu'": int(l.onProcessor.at), "'task_struct''__state'": int(l.state.at),
		"'task_struct''start_boottime'": int(l.started.at), "'task_struct''nvcsw'": int(l.left.at),
		"'task_struct''nivcsw'": int(l.preempted.at), "'task_struct''mm'": int(l.space.at),
		"'mm_struct''pgd'": int(l.directory.at),
	}
	for name, offset := range got {
		if offset != want[name] {
			t.Errorf("%s: %d, not %d", name, offset, want[name])
		}
	}
	if at := want["'task_struct''thread_info'"] + want["'thread_info''cpu'"]; int(l.processor.at) != at {
		t.Errorf("thread_info.cpu: %d, not %d", l.processor.at, at)
	}
}

// description makes one of types: records of words, and the text of the names.
func description(order binary.AppendByteOrder, text string, words ...uint32) []byte {
	p := order.AppendUint16([]byte(nil), 0xeb9f)
	p = append(p, 1, 0)
	for _, w := range []uint32{24, 0, uint32(4 * len(words)), uint32(4 * len(words)), uint32(len(text))} {
		p = order.AppendUint32(p, w)
	}
	for _, w := range words {
		p = order.AppendUint32(p, w)
	}
	return append(p, text...)
}

// TestTypes: members, also of nameless members and behind bit fields, and the sizes of numbers, in both byte orders.
func TestTypes(t *testing.T) {
	const text = "\x00a\x00int\x00b\x00s\x00"
	const integer, structure, fields = 1 << 24, 4 << 24, 1 << 31
	words := []uint32{
		3, integer, 4, 32,
		0, structure | 1, 4, 7, 1, 0, // nameless: b at 0
		9, structure | fields | 3, 16, 1, 1, 3<<24 | 35, 0, 2, 64, // s: a of 3 bits at 35, the nameless one at 64,
		3, 1, 8<<24 | 40, // and int of 8 bits at 40
		0, 8 << 24, 1, // 4: another name for int,
		0, 10 << 24, 4, // 5: constant,
		0, 2 << 24, 3, // 6: a pointer,
		0, 6 << 24, 2, // 7: an enumeration,
		0, 9 << 24, 8, // 8: of itself
	}
	sizes := []uint32{0, 4, 0, 0, 4, 4, 8, 2, 0, 0}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		types, err := parseTypes(description(order, text, words...))
		if err != nil {
			t.Fatal(err)
		}
		s, ok := types.find(kindStruct, "s")
		if offset, kind, found := types.member(s, "b"); !ok || s != 3 || !found || offset != 8 || kind != 1 {
			t.Errorf("b is at %d, of type %d, %v", offset, kind, found)
		}
		if _, _, found := types.member(s, "a"); found {
			t.Error("a begins in the middle of a byte")
		}
		if _, _, found := types.member(s, "int"); found {
			t.Error("a part of a byte was found, or what is as long as one but might not be")
		}
		for id, want := range sizes {
			if got := types.size(uint32(id)); got != want {
				t.Errorf("type %d has %d bytes, not %d", id, got, want)
			}
		}
		if _, _, found := types.member(s, "c"); found {
			t.Error("there is no c")
		}
	}
}

// FuzzTypes: any bytes are a description or an error, and what is found in it is in it.
func FuzzTypes(f *testing.F) {
	f.Add(description(binary.LittleEndian, "\x00task_struct\x00", 1, 4<<24|1, 8, 0, 1, 0))
	f.Add(description(binary.BigEndian, "\x00on_cpu\x00", 1, 12<<24, 0))
	f.Add([]byte{0x9f, 0xeb, 1, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		l, err := layoutOf(p)
		if (err == nil) != (l.find != 0 && l.release != 0) {
			t.Errorf("%+v, %v", l, err)
		}
	})
}
