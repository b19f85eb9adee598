package moment

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

var recordedDir = flag.String("recorded", "", "write testdata from the stacks that TestRecord has left below this directory")

// A sample is a recorded stack, as a line of a file: major|situation|backend type|wait type|wait event|functions,
// outermost first, separated by spaces. "~" before a name marks a function without a name on a stripped server.
type sample struct {
	major                                   int
	situation, backend, waitType, waitEvent string
	functions                               []string // innermost first
	local                                   []bool   // for each function, true if it has no name on a stripped server
}

func (s *sample) input() PhraseInput {
	return PhraseInput{Functions: s.functions, WaitType: s.waitType, WaitEvent: s.waitEvent, BackendType: s.backend, Major: s.major}
}

// stripped is the input that a stripped server gives.
func (s *sample) stripped() PhraseInput {
	in := s.input()
	in.Functions = slices.Clone(in.Functions)
	for i := range in.Functions {
		if s.local[i] {
			in.Functions[i] = ""
		}
	}
	return in
}

func (s *sample) line() string {
	var words []string
	for i := len(s.functions) - 1; i >= 0; i-- {
		if s.local[i] {
			words = append(words, "~"+s.functions[i])
		} else {
			words = append(words, s.functions[i])
		}
	}
	return fmt.Sprintf("%d|%s|%s|%s|%s|%s", s.major, s.situation, s.backend, s.waitType, s.waitEvent, strings.Join(words, " "))
}

func parseSample(line string) (*sample, error) {
	parts := strings.Split(line, "|")
	if len(parts) != 6 {
		return nil, fmt.Errorf("%q has not 6 parts", line)
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return nil, err
	}
	s := &sample{major: major, situation: parts[1], backend: parts[2], waitType: parts[3], waitEvent: parts[4]}
	words := strings.Fields(parts[5])
	slices.Reverse(words)
	for _, word := range words {
		name, local := strings.CutPrefix(word, "~")
		s.functions = append(s.functions, name)
		s.local = append(s.local, local)
	}
	return s, nil
}

// readSamples reads a file of testdata. Lines that begin with # are comments.
func readSamples(t testing.TB, name string) (out []*sample) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		s, err := parseSample(line)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// readRecorded reads the stacks of TestRecord. DIR/local.MAJOR has the names that a stripped server lacks.
func readRecorded(t *testing.T, major int) (out []*sample) {
	t.Helper()
	locals := map[string]bool{}
	data, err := os.ReadFile(filepath.Join(*recordedDir, fmt.Sprintf("local.%d", major)))
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(data)) {
		locals[name] = true
	}
	files, _ := filepath.Glob(filepath.Join(*recordedDir, strconv.Itoa(major), "*.txt"))
	sort.Strings(files)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			parts := strings.SplitN(lines.Text(), "|", 5)
			if len(parts) != 5 {
				continue
			}
			s := &sample{major: major, situation: strings.TrimSuffix(filepath.Base(file), ".txt"), backend: parts[1], waitType: parts[2], waitEvent: parts[3]}
			s.functions = strings.Split(parts[4], ";")
			slices.Reverse(s.functions)
			for _, name := range s.functions {
				s.local = append(s.local, locals[name])
			}
			out = append(out, s)
		}
		f.Close()
	}
	return out
}

// idle reports a process without work.
func idle(s *sample) bool {
	return strings.EqualFold(s.waitType, "Activity") || strings.EqualFold(s.waitEvent, "ClientRead")
}

var majors = []int{14, 18}

// TestPick writes testdata from recorded stacks: for each entry and version two stacks of a situation that the entry
// names as its proof, the nearest stack that it does not match, and the mixed load.
func TestPick(t *testing.T) {
	if *recordedDir == "" {
		t.Skip("without -recorded")
	}
	all := map[int][]*sample{}
	for _, major := range majors {
		all[major] = readRecorded(t, major)
	}
	var proofs, near []string
	table := compiled()
	for _, e := range table.entries {
		var proof *sample
		for _, major := range majors {
			var found []*sample
			elsewhere := map[string]int{}
			for _, s := range all[major] {
				if p := MatchPhrase(s.input()); p.Key == e.key {
					if slices.Contains(e.seen, s.situation) {
						found = append(found, s)
					} else {
						elsewhere[s.situation]++
					}
				}
			}
			if len(found) == 0 {
				t.Logf("UNPROVEN %d %s: %v", major, e.key, elsewhere)
				continue
			}
			sort.SliceStable(found, func(i, j int) bool { return len(found[i].functions) < len(found[j].functions) })
			proof = found[0]
			for _, s := range found[:min(2, len(found))] {
				proofs = append(proofs, e.key+"|"+s.line())
			}
		}
		if proof == nil {
			continue
		}
		if s := nearest(e, proof, all); s != nil {
			near = append(near, e.key+"|"+s.line())
		} else {
			t.Logf("NO NEAR MISS %s", e.key)
		}
	}
	write(t, "proofs.txt", "The key, and a stack of the situation that the entry names, on PostgreSQL 14 and 18", proofs)
	write(t, "near.txt", "The key, and a similar recorded stack that the entry must not match", near)
	for _, major := range majors {
		distinct := map[string]bool{}
		var lines []string
		for _, s := range all[major] {
			if s.situation == "mixed" && !idle(s) && !distinct[s.line()] {
				distinct[s.line()] = true
				lines = append(lines, s.line())
			}
		}
		sort.Strings(lines)
		// A fixed part of all distinct stacks: each nth of the sorted ones.
		if n := (len(lines) + 599) / 600; n > 1 {
			var part []string
			for i := 0; i < len(lines); i += n {
				part = append(part, lines[i])
			}
			lines = part
		}
		write(t, fmt.Sprintf("mixed-%d.txt", major), "Distinct stacks of a mixed load", lines)
	}
}

// nearest returns the stack that the entry does not match, although the stack has the most functions of the entry's
// pattern.
func nearest(e *entry, proof *sample, all map[int][]*sample) (best *sample) {
	most := 0.0
	table := compiled()
	for _, s := range all[proof.major] {
		in := s.input()
		if matchesEntry(table, e, in) || idle(s) {
			continue
		}
		same := 0
		for _, name := range s.functions {
			if slices.Contains(proof.functions, name) {
				same++
			}
		}
		if score := float64(same) / float64(len(proof.functions)+len(s.functions)-same); score > most {
			most, best = score, s
		}
	}
	return best
}

// matchesEntry reports whether the entry matches, even if another entry is better.
func matchesEntry(t *table, e *entry, in PhraseInput) bool {
	m := matcher{table: t, in: &in}
	for _, name := range in.Functions {
		m.ids = append(m.ids, t.identify(name))
	}
	m.note()
	if !e.allows(&in) {
		return false
	}
	for _, p := range e.patterns {
		for depth := range m.ids {
			if m.matches(p, depth) {
				return true
			}
		}
	}
	return false
}

func write(t *testing.T, name, comment string, lines []string) {
	t.Helper()
	text := "# " + comment + ". Made by TestPick.\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join("testdata", name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d stacks", name, len(lines))
}
