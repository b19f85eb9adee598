package cli

import "testing"

func TestDoctorsServer(t *testing.T) {
	for name, test := range map[string]struct {
		dataDir, connString, variable string
		found                         []string
		denied                        int
		want                          string
	}{
		"the only server":               {found: []string{"/data/a"}, want: "/data/a"},
		"two servers":                   {found: []string{"/data/a", "/data/b"}},
		"one more that is not readable": {found: []string{"/data/a"}, denied: 1},
		"no server":                     {},
		"a data directory":              {dataDir: "/data/b", found: []string{"/data/a"}, want: "/data/b"},
		"a connection string":           {connString: "port=5433", found: []string{"/data/a"}},
		"PGHOST":                        {variable: "PGHOST", found: []string{"/data/a"}},
		"PGHOSTADDR":                    {variable: "PGHOSTADDR", found: []string{"/data/a"}},
		"PGPORT":                        {variable: "PGPORT", found: []string{"/data/a"}},
		"PGSERVICE":                     {variable: "PGSERVICE", found: []string{"/data/a"}},
	} {
		env := func(name string) string {
			if name == test.variable {
				return "set"
			}
			return ""
		}
		servers := func() ([]string, int, error) { return test.found, test.denied, nil }
		if got := doctorsServer(test.dataDir, test.connString, env, servers); got != test.want {
			t.Errorf("%s: %q, not %q", name, got, test.want)
		}
	}
}
