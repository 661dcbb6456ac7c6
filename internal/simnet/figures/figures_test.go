package figures

import "testing"

func show(t *testing.T, name string, quick bool) []Value {
	t.Helper()
	f, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []Value
	for _, j := range f.Jobs {
		values, err := j.Run(Options{Seed: 1, Quick: quick})
		if err != nil {
			t.Fatalf("%s: %v", j.Name, err)
		}
		for _, v := range values {
			t.Logf("%s: %-30s %-14s %8.3f  paper %.3f", f.Name, v.Series, v.X, v.Value, v.Paper)
		}
		all = append(all, values...)
	}
	return all
}

func TestFigure5(t *testing.T) { show(t, "mc5", true) }
func TestFigure6(t *testing.T) { show(t, "mc6", true) }
func TestTable1(t *testing.T)  { show(t, "rdmc1", true) }
