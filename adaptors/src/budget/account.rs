//! The accounts of a tree. Each adaptor charges its requests to its own account.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use millpond_core::DeviceMemoryResource;

use super::node::{Node, Refusing, add};
use crate::panicked::caught;
use crate::shards::{All, Shards};
use crate::sync::{AtomicU64, Mistake, Mutex, Ordering, has_failed, makes};
use crate::waiting::{Frees, leaves_to_above};

pub(crate) type BudgetNode = Node<Tree>;

/// The state that the budgets of a tree share.
#[derive(Default)]
pub(crate) struct Tree {
    /// The accounts. Under this lock, accounts charge budgets.
    accounts: Mutex<Vec<Arc<Account>>>,
    /// Wakes requests that wait for bytes which another budget has borrowed.
    frees: Frees,
}

/// A thread takes a 64th of the free room in advance.
const PARTS: u64 = 64;

/// The live bytes of one adaptor.
///
/// A thread takes more from the budgets than a request needs, and keeps the rest in its stock. So most
/// requests and frees change only the thread's stock. When a budget refuses a request, the stocks of the
/// whole tree go back first. So a budget refuses only what does not fit.
pub(crate) struct Account {
    pub(crate) node: Arc<BudgetNode>,
    /// Bytes that were charged and are not live.
    stock: Shards<u64>,
    /// The live bytes and the stock. Changes only under the tree's lock.
    charged: AtomicU64,
    /// The whole stack of the adaptor, if it was built from text.
    stack: OnceLock<Weak<dyn DeviceMemoryResource + Send + Sync>>,
}

/// A refused request.
pub(crate) struct Refusal {
    pub(crate) node: Arc<BudgetNode>,
    pub(crate) used: u64,
    /// The budgets directly below `node`, and `node` itself, with the bytes that each of them holds.
    pub(crate) holders: Vec<(Arc<BudgetNode>, u64)>,
    /// The budget whose guarantee covers the request.
    guarantor: Option<Arc<BudgetNode>>,
    /// Accounts of other budgets that hold borrowed bytes, in the order in which they are asked.
    borrowers: Vec<Arc<Account>>,
    /// The names of the budgets that were asked to free memory.
    pub(crate) asked: Vec<String>,
}

thread_local! {
    /// Whether the thread runs a holder's function.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

impl Account {
    /// Charges a request.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64, is_capturing: impl Fn() -> bool) -> Result<(), Refusal> {
        if self.stock.take(bytes) { Ok(()) } else { self.charge_or_call_back(bytes, &is_capturing) }
    }

    #[cold]
    fn charge_or_call_back(&self, bytes: u64, is_capturing: &dyn Fn() -> bool) -> Result<(), Refusal> {
        let (begin, wait) = (Instant::now(), self.node.settings.wait);
        let refusal = match self.charge_budgets(bytes) {
            Err(refusal) => refusal,
            Ok(()) => return Ok(()),
        };
        let Some(guarantor) = &refusal.guarantor else { return Err(refusal) };
        if IS_CALLING.try_with(Cell::get).unwrap_or(true) || leaves_to_above(wait) {
            return Err(refusal);
        }
        let _claim = Claim::new(guarantor, bytes);
        let (mut asked, mut is_first) = (Vec::new(), !is_capturing());
        let charge = || {
            let mut charged = self.charge_budgets(bytes);
            while let Err(refusal) = &mut charged {
                let is_over = !asked.is_empty() && begin.elapsed() >= wait;
                if !is_first || is_over || refusal.borrowers.is_empty() {
                    break;
                }
                let borrowers = mem::take(&mut refusal.borrowers);
                let is_new = |account: &&Arc<Self>| !asked.iter().any(|known| Arc::ptr_eq(known, account));
                let Some(borrower) = borrowers.iter().find(is_new) else {
                    is_first = false;
                    break;
                };
                borrower.give_up(bytes);
                asked.push(Arc::clone(borrower));
                charged = self.charge_budgets(bytes);
            }
            charged
        };
        let is_curable = |refusal: &Refusal| refusal.guarantor.is_some();
        let charged = self.node.tree.frees.wait_for(begin, wait, is_curable, charge);
        charged.map_err(|mut refusal| {
            refusal.asked = asked.iter().map(|account| account.node.settings.name.clone()).collect();
            refusal.asked.dedup();
            refusal
        })
    }

    /// Charges a request to the budgets from this account's up to the root, or to none.
    fn charge_budgets(&self, bytes: u64) -> Result<(), Refusal> {
        let accounts = self.node.tree.accounts.lock();
        if self.node.refusing(bytes).is_none() {
            let room = self.node.room().saturating_sub(bytes);
            let more = if self.node.tree.frees.are_awaited() { 0 } else { room / PARTS };
            self.add(i128::from(bytes) + i128::from(more));
            if more > 0 {
                let mut mine = self.stock.mine();
                *mine = mine.saturating_add(more);
            }
            return Ok(());
        }
        let emptied = empty_stocks(&accounts);
        let refusing = self.node.refusing(bytes);
        if refusing.is_none() {
            self.add(i128::from(bytes));
        }
        drop(emptied);
        refusing.map_or(Ok(()), |refusing| Err(self.refusal(&accounts, &refusing)))
    }

    /// The caller holds the tree's lock.
    fn add(&self, bytes: i128) {
        add(&self.charged, bytes);
        self.node.add(bytes);
    }

    /// Subtracts bytes, but not more than there are: a caller may free a block that was never allocated. The
    /// caller holds the tree's lock.
    fn subtract(&self, bytes: u64) {
        self.add(-i128::from(bytes.min(self.charged.load(Ordering::Relaxed))));
    }

    /// Stops counting a freed block.
    #[inline]
    pub(crate) fn release(&self, bytes: u64) {
        let mut mine = self.stock.mine();
        // Read under the lock of the stock: a request that waits empties the stocks after it has begun to
        // wait. So either it finds these bytes, or this thread sees that it waits.
        if self.node.tree.frees.are_awaited() && !makes(Mistake::KeepsFrees) {
            drop(mine);
            return self.release_to_budgets(bytes);
        }
        *mine = mine.saturating_add(bytes).min(self.node.limit);
    }

    #[cold]
    fn release_to_budgets(&self, bytes: u64) {
        let tree = &self.node.tree;
        let accounts = tree.accounts.lock();
        self.subtract(bytes);
        drop(accounts);
        tree.frees.note();
    }

    fn refusal(&self, accounts: &[Arc<Self>], refusing: &Refusing<'_, Tree>) -> Refusal {
        let Refusing { node, guarantor } = *refusing;
        let mut holders: Vec<(Arc<BudgetNode>, u64)> = Vec::new();
        for account in accounts {
            let path: Vec<_> = account.node.path().collect();
            let Some(at) = path.iter().position(|on_path| Arc::ptr_eq(on_path, node)) else { continue };
            let holder = path[at.saturating_sub(1)];
            let charged = account.charged.load(Ordering::Relaxed);
            match holders.iter_mut().find(|(known, _)| Arc::ptr_eq(known, holder)) {
                Some((_, bytes)) => *bytes += charged,
                None => holders.push((Arc::clone(holder), charged)),
            }
        }
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        Refusal {
            node: Arc::clone(node),
            used: node.charged(),
            holders,
            guarantor: guarantor.cloned(),
            borrowers: guarantor.map_or_else(Vec::new, |guarantor| borrowers(accounts, node, guarantor)),
            asked: Vec::new(),
        }
    }

    /// Returns how many bytes this account has borrowed between its guarantor's siblings and `refusing`.
    fn borrowed(&self, refusing: &Arc<BudgetNode>, guarantor: &Arc<BudgetNode>) -> u64 {
        let mut bytes = self.charged.load(Ordering::Relaxed);
        for node in self.node.path() {
            if let Some(meets) = guarantor.path().position(|above| Arc::ptr_eq(above, node)) {
                // What lies below the guarantor is covered by it, and what lies above `refusing` is no help.
                let last = guarantor.path().position(|above| Arc::ptr_eq(above, refusing)).unwrap_or(0);
                return if meets > 0 && meets <= last { bytes } else { 0 };
            }
            bytes = bytes.min(node.borrowed());
        }
        0
    }

    /// Asks the holder to free memory: calls its function, and trims its stack. Holds no lock.
    fn give_up(&self, bytes: u64) {
        let (name, call_back) = (&self.node.settings.name, self.node.on_call_back());
        let _calling = Calling::begin();
        if let Some(call_back) = call_back
            && caught(|| call_back(bytes)).is_none()
        {
            tracing::error!(target: "millpond::budget", "the function of the budget `{name}` panicked");
        }
        if let Some(stack) = self.stack.get().and_then(Weak::upgrade)
            && let Err(error) = stack.trim(0)
        {
            tracing::warn!(target: "millpond::budget", %error, "the budget `{name}` kept memory");
        }
    }

    /// Remembers the whole stack of the adaptor.
    pub(crate) fn set_stack(&self, stack: Weak<dyn DeviceMemoryResource + Send + Sync>) {
        let _ = self.stack.set(stack);
    }
}

/// Keeps bytes for a waiting request, while this value lives.
struct Claim<'a> {
    guarantor: &'a Arc<BudgetNode>,
    bytes: u64,
}

impl<'a> Claim<'a> {
    fn new(guarantor: &'a Arc<BudgetNode>, bytes: u64) -> Self {
        let _accounts = guarantor.tree.accounts.lock();
        guarantor.claim(bytes.into());
        Self { guarantor, bytes }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        let _accounts = self.guarantor.tree.accounts.lock();
        self.guarantor.claim(-i128::from(self.bytes));
    }
}

/// Marks, while it lives, that the thread runs a holder's function.
struct Calling;

impl Calling {
    fn begin() -> Self {
        let _ = IS_CALLING.try_with(|is_calling| is_calling.set(true));
        Self
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let _ = IS_CALLING.try_with(|is_calling| is_calling.set(false));
    }
}

/// Gives all stocks back to the budgets. Until the result is dropped, no thread can change a stock.
fn empty_stocks(accounts: &[Arc<Account>]) -> Vec<All<'_, u64>> {
    // A thread that begins while the later accounts are locked may fill a stock of an earlier one, and then
    // take from a later one.
    let lock_all = || accounts.iter().map(|account| account.stock.all()).collect::<Vec<_>>();
    let mut stocks = lock_all();
    while !stocks.iter().all(All::is_whole) {
        drop(stocks);
        stocks = lock_all();
    }
    if makes(Mistake::LooksAtOneStockAtATime) {
        stocks = Vec::new();
        for account in accounts {
            let parts: u64 = account.stock.all().each.iter_mut().map(|part| mem::take(&mut **part)).sum();
            account.subtract(parts);
        }
    }
    for (account, stock) in accounts.iter().zip(&mut stocks) {
        let parts = stock.each.iter_mut().map(|part| mem::take(&mut **part));
        account.subtract(parts.fold(0, u64::saturating_add));
    }
    stocks
}

/// Returns the accounts that hold borrowed bytes: the lowest priority first, then the largest debt.
fn borrowers(
    accounts: &[Arc<Account>],
    refusing: &Arc<BudgetNode>,
    guarantor: &Arc<BudgetNode>,
) -> Vec<Arc<Account>> {
    let debt = |account: &Arc<Account>| (account.borrowed(refusing, guarantor), Arc::clone(account));
    let mut all: Vec<_> = accounts.iter().map(debt).filter(|(bytes, _)| *bytes > 0).collect();
    all.sort_by_key(|(bytes, account)| (account.node.settings.priority, std::cmp::Reverse(*bytes)));
    all.into_iter().map(|(_, account)| account).collect()
}

impl BudgetNode {
    /// Returns the live bytes, and the bytes that still fit.
    pub(crate) fn used_and_room(self: &Arc<Self>) -> (u64, u64) {
        let accounts = self.tree.accounts.lock();
        let _stocks = empty_stocks(&accounts);
        (self.charged(), self.room())
    }

    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.tree.frees.are_awaited()
    }
}

/// The account of an adaptor. All its bytes go back when the adaptor is dropped.
pub(crate) struct Member(Arc<Account>);

impl Member {
    pub(crate) fn new(node: Arc<BudgetNode>) -> Self {
        let tree = Arc::clone(&node.tree);
        let (charged, stack) = (AtomicU64::new(0), OnceLock::new());
        let account = Arc::new(Account { node, stock: Shards::new(), charged, stack });
        tree.accounts.lock().push(Arc::clone(&account));
        Self(account)
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl std::ops::Deref for Member {
    type Target = Account;

    fn deref(&self) -> &Account {
        &self.0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        let tree = &self.0.node.tree;
        let mut accounts = tree.accounts.lock();
        // This value keeps the account, so nothing is dropped under the lock.
        accounts.retain(|account| !Arc::ptr_eq(account, &self.0));
        self.subtract(u64::MAX);
        drop(accounts);
        tree.frees.note();
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("budget", &self.node).finish_non_exhaustive()
    }
}
