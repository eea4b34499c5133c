import torch
from torch.utils.data import DataLoader, Dataset


class Toy(Dataset):
	def __len__(self):
		return 96
	def __getitem__(self, i):
		x = torch.full((3,), float(i) / 96)
		return {"x": x, "y": x.sum().unsqueeze(0)}

torch.manual_seed(10)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
toy = Toy()
loader = DataLoader(toy, batch_size=8, shuffle=True)

for e in range(3):
	# tabs
	total = 0.0
	for batch in loader:
		optimizer.zero_grad()
		loss = (model(batch["x"]) - batch["y"]).pow(2).mean()
		loss.backward()
		optimizer.step()
		total += loss.item()
	print("epoch", e, total)
print("finished")
