package rc

// CCParams are the DCQCN parameters, named as Mellanox's cc_params name them.
// The zero value of each field means its default.
type CCParams struct {
	Disable bool
}
