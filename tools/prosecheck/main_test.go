package main

import "testing"

func TestInText(t *testing.T) {
	for _, test := range []struct {
		file, text string
		want       int
	}{
		{"a.go", "// whoever reads this, nobody tells\nwho := 1\n", 3},
		{"a.go", "x := who // nor this\n", 1},
		{"a.go", "// `who` in code\n", 0},
		{"a.sql", "-- of its own\nSELECT who;\n", 1},
		{"a.md", "It says so.\n    who | code\n", 1},
		{"a.sh", "# unless told otherwise\n", 1},
		{"a.md", "The worker reads the stack.\n", 0},
	} {
		if got := inText(test.file, []byte(test.text)); len(got) != test.want {
			t.Errorf("%s %q: %d findings %v, want %d", test.file, test.text, len(got), got, test.want)
		}
	}
}

func TestCompare(t *testing.T) {
	if err := compare(map[string]int{"a": 2}, map[string]int{"a": 1}, nil); err == nil {
		t.Error("a file with more findings than allowed passed")
	}
	if err := compare(map[string]int{"b": 1}, nil, nil); err == nil {
		t.Error("a file that the allow list does not have passed")
	}
	if err := compare(map[string]int{"a": 1}, map[string]int{"a": 2}, nil); err != nil {
		t.Errorf("a file with fewer findings than allowed failed: %v", err)
	}
}
