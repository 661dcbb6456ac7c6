package figures

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/simnet/workload"
)

// All are the figures that there are.
func All() []Figure {
	list := []Figure{figure5(), figure6(1), figure6(4), figure7()}
	for _, sizes := range workload.Known() {
		list = append(list, figure8(sizes, 3), figure8(sizes, 1))
	}
	return append(list, figure9(), table1(), rdmc4(), rdmc6(), rdmc8(), rdmc9(), rdmc10(), why())
}

// Find returns the figure of a name.
func Find(name string) (Figure, error) {
	var names []string
	for _, f := range All() {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Figure{}, fmt.Errorf("there is no figure %q; there are %v", name, names)
}
