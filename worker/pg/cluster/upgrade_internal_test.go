package cluster

import "testing"

func TestUpgradeOption(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		want      bool
	}{
		{[]string{"postgres", "-D", "/data"}, false},
		{[]string{"postgres", "-p", "50432", "-b", "-c", "synchronous_commit=off"}, true},
		{[]string{"postgres", "-D", "-b"}, false}, // a directory of that name
		{[]string{"postgres", "-D/b", "-cb=1", "--b=1", "-kb"}, false},
		{[]string{"postgres", "-Fb"}, true},
		{[]string{"postgres", "-iF", "-D", "x", "-b"}, true},
		{[]string{"postgres", "-c", "a=b", "b", "-b"}, false}, // behind the first word that is no option
		{[]string{"postgres", "--", "-b"}, false},
		{[]string{"postgres"}, false},
		{[]string{"/lib64/ld-linux-x86-64.so.2", "--argv0", "postgres", "/usr/bin/postgres", "-D", "x", "-b"}, true},
		{[]string{"ld-musl-x86_64.so.1", "--library-path=/b", "--", "/usr/bin/postgres", "-b"}, true},
		{[]string{"ld.so", "--preload", "-b", "--inhibit-cache", "/usr/bin/postgres", "-D", "x"}, false},
		{[]string{"ld.so", "--argv0"}, false},
		{[]string{""}, false},
		{[]string{"/lib64/ld-linux-x86-64.so.2", "/path/postgres", "-b"}, true},
		{[]string{"/lib64/ld-linux-x86-64.so.2", "--library-path", "/lib", "/path/postgres", "-D", "x", "-b"}, true},
		{[]string{"/lib/ld-musl-x86_64.so.1", "--preload", "-b", "/path/postgres", "-D", "-b"}, false},
		{[]string{"ld-linux-x86-64.so.2", "--list"}, false},
	} {
		if got := hasUpgradeOption(withoutLoader(test.arguments)); got != test.want {
			t.Errorf("%q: %v", test.arguments, got)
		}
	}
}
