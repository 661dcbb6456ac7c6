package mcrdma

import mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"

func groupID(id *mcrdmav1.GroupID) GroupID { return GroupID{id.GetSource(), id.GetNumber()} }

func (id GroupID) wire() *mcrdmav1.GroupID {
	return &mcrdmav1.GroupID{Source: id.Source, Number: id.Number}
}

// infoOf converts the daemon's description of a group.
func infoOf(f *mcrdmav1.FormationInfo) Info {
	i := Info{
		ID: groupID(f.GetGroup()), Path: Path(f.GetPath()), Why: f.GetWhy(), Formation: f.GetFormation(), MCID: f.GetMcId(),
		PSN: f.GetConnection().GetPsn(), MTU: int(f.GetConnection().GetMtu()), Members: peersOf(f.GetMembers()), View: f.GetView(),
	}
	if r := f.GetRelay(); r != nil && i.Path == PathRelay {
		i.Algorithm, i.Transport, i.Block = r.GetAlgorithm(), r.GetTransport(), int(r.GetBlock())
	}
	for _, s := range f.GetPhases() {
		i.Phases = append(i.Phases, Phase{Name: s.GetPhase(), Took: s.GetTook().AsDuration()})
	}
	return i
}

func peersOf(members []*mcrdmav1.Member) (list []Peer) {
	for _, m := range members {
		list = append(list, peerOf(m))
	}
	return list
}

func peerOf(m *mcrdmav1.Member) Peer {
	return Peer{Address: m.GetAddress(), Host: m.GetHost(), QPN: m.GetQpn()}
}

// marked sets the members' first operations.
func marked(members []Peer, from map[string]uint64) []Peer {
	for i := range members {
		members[i].From = from[members[i].Address]
	}
	return members
}

// viewOf is a formation's view, with its members' first operations.
func viewOf(f *mcrdmav1.FormationInfo, from map[string]uint64) View {
	return View{Number: f.GetView(), Formation: f.GetFormation(), Members: marked(peersOf(f.GetMembers()), from)}
}
