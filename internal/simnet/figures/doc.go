// Package figures has the experiments of the papers that the simulator repeats: their fabrics, their
// parameters, and what they measured. docs/simulation.md compares them.
//
// Parameters are the papers' where these name them. Where they do not, they are [simnet.Defaults] or are
// named here with the reason, and were fixed before anything was compared.
package figures
